"""What a store says when it says no: the word for it, whether waiting helps, and what it means.

Redis and Valkey begin an error with a word. Some of these words are about the store as a whole
and pass by themselves; some stay until a person does something; and all others are about the
one command that was refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way in which a store refuses."""

    word: str
    """As the server says it; empty where it is none of these."""
    transient: bool
    """Whether it passes by itself, so that trying again is the right thing to do."""
    meaning: str
    """What is true and what follows, to be read after the word."""


UNNAMED = Refusal("", transient=False, meaning="")

REFUSALS: dict[str, Refusal] = {
    word: Refusal(word, transient=transient, meaning=meaning)
    for word, transient, meaning in (
        (
            "NOREPLICAS",
            True,
            "fewer replicas follow it than its min-replicas-to-write asks for; it is tried again",
        ),
        (
            "READONLY",
            True,
            "it is a replica, so a failover is under way or redis.url leads to the wrong server; "
            "it is connected to anew and tried again",
        ),
        ("LOADING", True, "it is still reading its data into memory; it is tried again"),
        (
            "BUSY",
            True,
            "a script that is not ours blocks it; it is tried again, and SCRIPT KILL ends that one",
        ),
        ("MASTERDOWN", True, "it is a replica that has lost its primary; it is tried again"),
        ("TRYAGAIN", True, "the keys are moving to another node; it is tried again"),
        ("CLUSTERDOWN", True, "the cluster has slots that no node serves; it is tried again"),
        ("MOVED", True, "the slot moved on while it was followed; it is tried again"),
        ("ASK", True, "the slot moved on while it was followed; it is tried again"),
        ("NOSCRIPT", True, "its scripts were flushed; they are sent again"),
        ("MAXCLIENTS", True, "it has as many clients as its maxclients allows; it is tried again"),
        ("OOM", False, "it is full; raise its maxmemory, or give it a machine with more"),
        ("MISCONF", False, "it cannot save its data; see its log, and mend its disk"),
        (
            "NOPERM",
            False,
            "this user lacks a right; give it those of deploy/redis/checkpointd.acl",
        ),
        ("NOAUTH", False, "it asks for a password; set redis.password_file"),
        (
            "WRONGPASS",
            False,
            "it does not know this user and password; correct redis.username or the password",
        ),
        ("CROSSSLOT", False, "the keys of one step are not in one slot, which is an error of ours"),
    )
}

# Redis 6.2 puts the word in the middle when a script met it: "… @user_script: 39: -OOM command …".
_INSIDE = re.compile(r"(?:^|[\s(])-?(" + "|".join(REFUSALS) + r")(?=\s|$)")
_IN_OTHER_WORDS = (
    ("max number of clients reached", "MAXCLIENTS"),
    ("ACL failure in script", "NOPERM"),
    ("can't run this command or subcommand", "NOPERM"),
    ("can't access at least one of the keys", "NOPERM"),
    ("Authentication required", "NOAUTH"),
    ("invalid username-password pair", "WRONGPASS"),
    ("invalid password", "WRONGPASS"),
)


def refusal_of(told: str) -> Refusal:
    """What a server's error text means; ``UNNAMED`` if it is about the one command only."""
    first = told.split(" ", 1)[0].lstrip("-")
    if first in REFUSALS:
        return REFUSALS[first]
    for text, word in _IN_OTHER_WORDS:
        if text in told:
            return REFUSALS[word]
    found = _INSIDE.search(told)
    return REFUSALS[found.group(1)] if found else UNNAMED
