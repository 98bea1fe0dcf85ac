from mvc.workspace.notebook import (
    MAX_LINE_CHARS,
    NoteKind,
    find_time,
    one_line,
    split_paragraphs,
    time_text,
)

KIND = NoteKind("refs/notes/remarks", "remark", lambda _commit, text: tuple(text.split()))


def test_times():
    assert find_time(time_text(0)) == 0
    assert find_time("٢٠٢٦-01-01T00:00:00Z") is None
    assert find_time("0000-01-01T00:00:00Z") is None


def test_lines_and_paragraphs():
    assert one_line(" a\x1b\n b ") == "a b"
    assert len(one_line("x" * 2 * MAX_LINE_CHARS)) == MAX_LINE_CHARS
    assert split_paragraphs("a\nb\n \n\n\nc\n") == ["a\nb", "c"]


def test_a_note_is_written_read_and_taken_away(repo):
    context = repo._context
    commit = repo.commit("one", allow_empty=True).commit
    notes = context.notebook(KIND)
    assert context.notebook(KIND) is notes
    assert (notes.open(), notes.find(commit), dict(notes.read())) == (None, (), {})
    notes.write({commit: ["a", "b c"]}, message="x", stamp=context.stamp())
    assert notes.find_paragraphs(commit) == ["a", "b c"]
    assert notes.find(commit) == ("a", "b", "c")
    first = notes.read()
    assert dict(first) == {commit: ("a", "b", "c")}
    assert notes.read() is first, "it is kept until the ref moves"
    notes.write({commit: []}, message="x", stamp=context.stamp())
    assert (notes.find_note(commit), notes.find_paragraphs(commit), dict(notes.read())) == (
        None,
        [],
        {},
    )
