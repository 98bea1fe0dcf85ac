"""mvc reflog."""


def test_reflog(shell):
    entries = shell.json("reflog")
    assert [entry["ref"] for entry in entries[:2]] == ["HEAD@{0}", "HEAD@{1}"]
    assert entries[0]["message"] == "commit: grown"
    assert entries[0]["new"] == shell.json("log")[0]["commit"]
    assert entries[0]["who"] == "Ada Lovelace <ada@example.org>"
    first = shell.ok("reflog", "-n", "1").lines
    assert first == [f"{entries[0]['new'][:7]} HEAD@{{0}}: commit: grown"]
    assert shell.json("reflog", "side")[0]["message"] == "commit: another config"
    assert shell.json("log", "HEAD@{1}", "-1")[0]["subject"] == "tuned"


def test_a_deleted_branch_can_be_found(shell):
    tip = shell.json("log", "side", "-1")[0]["commit"]
    shell.ok("switch", "side")
    shell.ok("switch", "main")
    shell.ok("branch", "-D", "side")
    answer = shell("reflog", "side")
    assert answer.code == 3
    assert answer.hint == f'HEAD left it at {tip[:7]}: "mvc branch side {tip[:7]}" restores it'
    shell.ok("branch", "side", tip[:7])
    assert shell("reflog", "never").hint == '"mvc branch" lists branches'
