"""mvc reset."""


def test_reset_modes(shell):
    shell.ok("reset", "--soft", "HEAD~1")
    assert shell.ok("status", "-s").lines == ["M  model.safetensors"]
    shell.ok("reset", "--hard", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    answer = shell.ok("reset", "HEAD~1")
    assert answer.lines == ["Unstaged changes after reset:", "M\tmodel.safetensors"]
    shell.ok("reset", "--mixed", "-q", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    first = shell.json("log")[-1]["commit"][:7]
    assert shell.ok("reset", "--hard", "v1").lines == [f"HEAD is now at {first} base model"]
