"""What commits say of their replicas, as text."""

import pytest

from mvc.training import Agreement, Dispute
from mvc.workspace.trailers import read_agreement

ODD = Dispute("a model.safetensors", "layers.0 w\n%20\u2028é", 3, (0,), (1, 12))
PLAIN = Dispute("model.safetensors", "layers.3.weight", 5, (0,), (1,))


@pytest.mark.parametrize(
    "agreement",
    [Agreement(37, 592), Agreement(0, 1, 1, (PLAIN,)), Agreement(36, 592, 20, (PLAIN, ODD))],
)
def test_trailers_give_back_what_they_say(agreement):
    trailers = agreement.trailers()
    assert read_agreement(trailers) == agreement
    assert all(value.isprintable() and "\n" not in value for _, value in trailers)


def test_its_spelling_is_that_of_the_format():
    assert Agreement(36, 592, 1, (PLAIN,)).trailers() == [
        ("Replica-Check", "agreed=36 of=592 differed=1"),
        ("Replica-Dispute", "model.safetensors layers.3.weight chunk=5 stored=0 checked=1"),
    ]


def test_its_words():
    assert str(Agreement(1037, 5920)) == "two ranks agree on 1,037 of 5,920 chunks"
    one = "layers.3.weight in model.safetensors differs in chunk 5 between rank 0 and rank 1"
    assert str(Agreement(36, 592, 1, (PLAIN,))) == one
    assert str(Agreement(36, 592, 4, (PLAIN,))) == f"{one}, and 3 more"
    assert str(Agreement(36, 592, 2)) == "2 chunks differ between ranks"
    more = Dispute("f", "w", 0, (0, 1), (2, 3))
    assert str(more) == "w in f differs in chunk 0 between ranks 0, 1 and ranks 2, 3"


def test_what_anyone_may_write_into_a_message_is_nothing():
    for value in ["", "37 of 592", "agreed=37", "agreed=-1 of=3", "agreed=1 of=2 differed=x", f"agreed={9 * 10**30} of=1",
     "agreed=1 of=2 ", "agreed=1 of=2 more=3", "agreed=\u0663 of=4"]:  # fmt: skip
        assert read_agreement([("Replica-Check", value)]) is None


def test_disputes_that_cannot_be_read_are_left_out_and_none_are_too_many():
    bad = [
        "",
        "f w chunk=x stored=0 checked=1",
        "f w chunk=1 stored= checked=1",
        "w chunk=1 stored=0 checked=1",
    ]
    good = "f w chunk=1 stored=0 checked=1"
    trailers = [("Replica-Check", "agreed=0 of=99 differed=99")]
    trailers += [("Replica-Dispute", value) for value in [*bad, *[good] * 40]]
    found = read_agreement(trailers)
    assert found.differed == 99
    assert found.disputes == (Dispute("f", "w", 1, (0,), (1,)),) * 16
