"""What doctor makes of what it was told, without a store."""

from __future__ import annotations

from datetime import timedelta
from math import inf

import pytest

from checkpointd.cli import checks
from checkpointd.cli.checks import Verdict
from checkpointd.config import Lease, Redis, Registry, Settings

HOUR = timedelta(hours=1)


class TestServer:
    @pytest.mark.parametrize(
        ("info", "verdict", "said"),
        [
            ({"redis_version": "7.2.4"}, "ok", "Redis 7.2.4"),
            ({"redis_version": "6.2.0"}, "ok", "Redis 6.2.0"),
            ({"redis_version": "6.0.16"}, "fail", "6.2 is the least"),
            ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok", "Valkey 9.1.2"),
            ({"redis_version": "7.2.4", "dragonfly_version": "1.0"}, "warn", "dragonfly"),
            ({}, "warn", "cannot say"),
        ],
    )
    def test_its_commands_must_be_enough(
        self, info: dict[str, str], verdict: str, said: str
    ) -> None:
        check = checks.server(info)
        assert check.verdict == verdict
        assert said in check.sentence


class TestEviction:
    def test_a_server_that_keeps_everything_is_right(self) -> None:
        assert checks.eviction("noeviction").verdict is Verdict.OK

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
    def test_one_that_may_delete_refs_is_wrong(self, policy: str) -> None:
        check = checks.eviction(policy)
        assert check.verdict is Verdict.FAIL
        assert policy in check.sentence


class TestMemory:
    @pytest.mark.parametrize(
        ("used", "verdict"), [(79, "ok"), (80, "warn"), (94, "warn"), (95, "fail"), (120, "fail")]
    )
    def test_little_room_is_said_before_there_is_none(self, used: int, verdict: str) -> None:
        assert checks.memory({"used_memory": used, "maxmemory": 100}).verdict == verdict

    def test_no_limit_leaves_room(self) -> None:
        check = checks.memory({"used_memory": 3 << 30, "maxmemory": 0})
        assert check.verdict is Verdict.OK
        assert "3.0 GiB" in check.sentence


class TestPersistence:
    @pytest.mark.parametrize(
        ("info", "verdict"),
        [
            ({"aof_enabled": 1}, "ok"),
            ({"aof_enabled": 1, "aof_last_write_status": "err"}, "fail"),
            ({"aof_enabled": 0}, "warn"),
            ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "fail"),
            ({"loading": 1, "aof_enabled": 1}, "fail"),
        ],
    )
    def test_the_registry_should_outlive_its_server(
        self, info: dict[str, object], verdict: str
    ) -> None:
        assert checks.persistence(info).verdict == verdict


class TestReplication:
    def test_a_replica_takes_no_writes(self) -> None:
        assert checks.replication({"role": "slave"}).verdict is Verdict.FAIL

    def test_a_primary_is_right_with_replicas_or_without(self) -> None:
        assert checks.replication({"role": "master"}).verdict is Verdict.OK
        two = checks.replication({"role": "master", "connected_slaves": 2})
        assert "2 connected" in two.sentence


class TestCluster:
    def test_every_slot_must_be_served(self) -> None:
        whole = {"cluster_state": "ok", "cluster_slots_ok": "16384", "cluster_size": "3"}
        assert checks.cluster(whole).verdict is Verdict.OK
        assert checks.cluster({**whole, "cluster_slots_ok": "16383"}).verdict is Verdict.FAIL
        assert checks.cluster({**whole, "cluster_state": "fail"}).verdict is Verdict.FAIL


class TestClock:
    @pytest.mark.parametrize(
        ("offset_s", "verdict"),
        [(0.5, "ok"), (-0.5, "ok"), (1, "warn"), (-59, "warn"), (60, "fail")],
    )
    def test_two_clocks_should_agree(self, offset_s: float, verdict: str) -> None:
        assert checks.clock(offset_s).verdict == verdict

    def test_it_says_which_one_is_ahead(self) -> None:
        assert "ahead of" in checks.clock(5).sentence
        assert "behind" in checks.clock(-5).sentence


class TestRoundTrip:
    def test_a_slow_store_is_said_before_it_looks_like_an_outage(self) -> None:
        assert checks.round_trip("redis://h", 0.01, timedelta(seconds=1)).verdict is Verdict.OK
        assert checks.round_trip("redis://h", 0.3, timedelta(seconds=1)).verdict is Verdict.WARN


META = {"schema": "1", "min_reader": "1", "partitions": "16", "environment": "default"}


class TestRegistry:
    def verdicts(self, meta: dict[str, str], settings: Settings) -> dict[str, str]:
        return {check.name: str(check.verdict) for check in checks.registry(meta, settings)}

    def test_ours_is_ours(self) -> None:
        assert set(self.verdicts(META, Settings()).values()) == {"ok"}

    def test_none_is_no_fault(self) -> None:
        assert set(self.verdicts({}, Settings()).values()) == {"ok"}

    def test_each_disagreement_is_told_apart(self) -> None:
        settings = Settings(registry=Registry(partitions=8, environment="production"))
        assert self.verdicts({**META, "min_reader": "9"}, settings) == {
            "schema": "fail",
            "partitions": "fail",
            "environment": "fail",
        }

    def test_a_wrong_number_of_partitions_is_told_with_both_numbers(self) -> None:
        found = checks.registry(META, Settings(registry=Registry(partitions=8)))
        sentence = next(check.sentence for check in found if check.name == "partitions")
        assert "16" in sentence
        assert "8" in sentence


class TestLeaseArithmetic:
    def test_the_defaults_may_lose_renewals(self) -> None:
        check = checks.lease_arithmetic(Settings())
        assert check.verdict is Verdict.OK
        assert "2 renewals in a row may be lost" in check.sentence

    def test_one_that_may_lose_none_is_said(self) -> None:
        tight = Settings(
            lease=Lease(
                ttl=timedelta(seconds=15),
                deadline=timedelta(seconds=10),
                renew_every=timedelta(seconds=6),
            ),
            redis=Redis(timeout=timedelta(seconds=1)),
        )
        assert checks.lease_arithmetic(tight).verdict is Verdict.WARN


class TestGrace:
    def test_too_few_turns_say_nothing(self) -> None:
        check = checks.grace(HOUR, {60.0: 3, inf: 0}, late=0)
        assert check.verdict is Verdict.OK
        assert "too few" in check.sentence

    def test_a_grace_longer_than_turns_take_is_right(self) -> None:
        check = checks.grace(HOUR, {60.0: 990, 300.0: 10, inf: 0}, late=0)
        assert check.verdict is Verdict.OK
        assert "within 1m" in check.sentence

    def test_one_that_honest_turns_outlast_is_told_with_both_numbers(self) -> None:
        check = checks.grace(timedelta(minutes=2), {60.0: 900, 300.0: 100, inf: 0}, late=0)
        assert check.verdict is Verdict.WARN
        assert "2m" in check.sentence
        assert "5m" in check.sentence

    def test_turns_beyond_the_last_bound_are_longer_than_any_grace_that_is_known(self) -> None:
        assert checks.grace(HOUR, {60.0: 90, inf: 10}, late=0).verdict is Verdict.WARN

    def test_a_writer_that_came_back_too_late_has_proved_it(self) -> None:
        check = checks.grace(HOUR, {60.0: 1000, inf: 0}, late=2)
        assert check.verdict is Verdict.WARN
        assert "2 writers" in check.sentence
