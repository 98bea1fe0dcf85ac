"""What a checkout plans to do."""

from __future__ import annotations

from mvc.history.values import TreeEntry
from mvc.workspace.checkout_plan import plan_checkout
from mvc.workspace.recorded import head_tree
from support.transitions import entry_of


class TestPlan:
    def test_reads_no_clean_file_and_plans_nothing_twice(self, two, root):
        context = two._context
        index, target = context.history.read_index(), context.history.read_tree(two.resolve("main"))
        plan = plan_checkout(context, index, head_tree(context), target)
        assert (plan.write, plan.remove, plan.entries, plan.conflicts, plan.blockers) == (
            (), (), (), (), (),
        )  # fmt: skip

    def test_of_a_tree_that_nobody_committed(self, two, root):
        context = two._context
        target = {"x": TreeEntry(0o100644, entry_of(two, "HEAD", "a").blob)}
        index = context.history.read_index()
        plan = plan_checkout(context, index, head_tree(context), target)
        assert [path for path, _ in plan.write] == ["x"]
        assert plan.remove == ("a", "new/file")
