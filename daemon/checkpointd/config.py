"""The settings: what may be set, at which default and why, and how a file and an environment become it.

``load_settings`` reads a TOML file, lays ``CHECKPOINTD_<SECTION>__<KEY>`` over it and returns
frozen ``Settings``, or raises one ``ConfigError`` with every complaint. Nothing below this
room sees a settings object: a pass is given a ``timedelta``.

Each field's docstring is its reason; ``config.example.toml`` and ``check-config`` are made of
the fields, so there is one place to write. Environment variables are laid over the file here and
not by pydantic-settings, which stops at the first value that it cannot read, does not see a
misspelt variable, and cannot say which variable a complaint is about.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic.fields import FieldInfo
from typing_extensions import override

from checkpointd.domain.durations import (
    QuantityError,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from checkpointd.domain.errors import ConfigError, shortened
from checkpointd.domain.redaction import MASK, redacted

ENV_PREFIX = "CHECKPOINTD_"
ENV_FILE = "CHECKPOINTD_CONFIG"
DEFAULT_FILE = "checkpointd.toml"
STORE_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "embedded")
REPLAY_SCHEMES = ("turnstate", "python", "http", "https")


# What a value may be ---------------------------------------------------------------------------


def _above_zero(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise QuantityError(f'"{format_duration(value)}" is refused; it must be longer than zero')
    return value


def _size_of(given: object) -> int:
    return given.bytes if isinstance(given, Size) else parse_size(given)


class Size(int):
    """A number of bytes that shows itself with its unit."""

    @property
    def bytes(self) -> int:
        return int(self)

    @override
    def __repr__(self) -> str:
        return format_size(self)


def _word(given: str) -> str:
    """A name that goes into keys of the store and must not be mistaken for their syntax."""
    if not given:
        raise ValueError("it is empty; give it a name")
    if len(given) > 64:
        raise ValueError(f"it has {len(given):,} characters; 64 is the most")
    if not given.isprintable() or "{" in given or "}" in given:
        raise ValueError(
            f"{shortened(given)} holds a brace or a control character, which would change the "
            "store's slot of every key; leave them out"
        )
    return given


def _store_url(given: str) -> str:
    shown = shortened(redacted(given))
    parts = _split(given, shown, known=STORE_SCHEMES, example="redis://127.0.0.1:6379/0")
    if parts.scheme in ("unix", "embedded"):
        if not (parts.netloc or parts.path.strip("/")):
            raise ValueError(f"{shown} names no path; write {parts.scheme}:///a/path")
        return given
    hosts = parts.netloc.rpartition("@")[2]
    if not hosts:
        raise ValueError(f"{shown} names no host; write {parts.scheme}://HOST:PORT")
    for host in hosts.split(","):
        _check_port(f"//{host}", shown)
    return given


def _source_url(given: str) -> str:
    if given:
        shown = shortened(redacted(given))
        scheme, colon, rest = given.partition(":")
        if not colon or not scheme or "/" in scheme:
            raise ValueError(
                f"{shown} has no scheme; for a SQLite file write sqlite:///{redacted(given)[:80]}"
            )
        if scheme == "python":
            _check_entry_point(rest, shown)
    return given


def _replay_url(given: str) -> str:
    shown = shortened(redacted(given))
    parts = _split(given, shown, known=REPLAY_SCHEMES, example="turnstate:")
    if parts.scheme == "python":
        _check_entry_point(given.partition(":")[2], shown)
    if parts.scheme in ("http", "https"):
        if not parts.netloc:
            raise ValueError(f"{shown} names no host; write {parts.scheme}://HOST:PORT/PATH")
        _check_port(given, shown)
    return given


def _split(given: str, shown: str, *, known: tuple[str, ...], example: str) -> Any:
    try:
        parts = urlsplit(given)
    except ValueError as error:
        raise ValueError(f"{shown} is no URL ({error}); write one such as {example}") from None
    if parts.scheme not in known or ":" not in given:
        near = difflib.get_close_matches(parts.scheme, known, n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if parts.scheme and near else ""
        raise ValueError(
            f"{shown} has a scheme unknown here; {meant}known are {', '.join(known)}, "
            f"as in {example}"
        )
    return parts


def _check_port(url: str, shown: str) -> None:
    try:
        _ = urlsplit(url).port
    except ValueError:
        raise ValueError(f"{shown} has no valid port; a port is 0 to 65535") from None


def _check_entry_point(rest: str, shown: str) -> None:
    module, _, factory = rest.partition(":")
    if not (factory.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f"{shown} names no factory; write python:package.module:factory")


def _listen(given: str) -> str:
    _listen_address(given)
    return given


def _listen_address(given: str) -> tuple[str, int] | None:
    if not given:
        return None
    host, colon, port = given.rpartition(":")
    if colon and not host:
        raise ValueError(
            f"{shortened(given)} names no address; write 127.0.0.1:{port}, or 0.0.0.0:{port} for all"
        )
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise ValueError(
            f'{shortened(given)} is no HOST:PORT; write "127.0.0.1:9464" or "[::1]:9464"'
        )
    if not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise ValueError(f"{shortened(given)} has no valid port; a port is 0 to 65535")
    return (host[1:-1] if bracketed else host), int(port)


def _as_tuple(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


def _as_path(given: object) -> object:
    return Path(given) if isinstance(given, str) else given


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Period = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_above_zero)]
Bytes = Annotated[int, BeforeValidator(_size_of), AfterValidator(Size)]
Words = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Secret = Annotated[SecretStr, Field(strict=False)]
Name = Annotated[str, AfterValidator(_word)]


# What may be set -------------------------------------------------------------------------------


class Section(BaseModel):
    """A table of the file: frozen, and shown without its secrets."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    @override
    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for key in type(self).model_fields:
            yield key, _shown(getattr(self, key))


class Redis(Section):
    """The store that is the authority. Any number of daemons may share one."""

    url: Annotated[str, AfterValidator(_store_url)] = "redis://127.0.0.1:6379/0"
    """Which store, by scheme: redis, rediss (TLS), unix, redis+sentinel, redis+cluster, or
    embedded://DIR for a server of the daemon's own that keeps its data in DIR."""

    username: str = ""
    """The store's ACL user; empty for its default user."""

    password: Secret = SecretStr("")
    """Better given by the environment (CHECKPOINTD_REDIS__PASSWORD) or by password_file than
    written here."""

    password_file: str = ""
    """A file that holds the password. Read again at each reconnect, so a rotated one is picked up
    without a restart."""

    ca_file: str = ""
    """The authority that signed the store's certificate; empty for the system's authorities."""

    cert_file: str = ""
    """The daemon's own certificate, where the store asks for one; goes with key_file."""

    key_file: str = ""
    """The private key of cert_file."""

    timeout: Period = timedelta(seconds=1)
    """How long one command may take. Part of the lease's arithmetic: a longer one wants a longer
    lease.deadline."""

    connect_timeout: Period = timedelta(seconds=1)
    """How long a new connection may take."""

    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Connections of one daemon, each of its two clients; a command waits for a free one."""

    read_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a read is tried again. Writes are never sent again blindly."""

    def read_password(self) -> str | None:
        """The password now, or ``None``; the file is read anew by each call.

        One trailing newline is not part of it. ``ConfigError`` if the file cannot be read.
        """
        if self.password_file:
            try:
                return (
                    Path(self.password_file)
                    .read_text("utf-8")
                    .removesuffix("\n")
                    .removesuffix("\r")
                )
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    [f"redis.password_file {self.password_file!r} cannot be read ({_why(error)})"]
                ) from error
        if secret := self.password.get_secret_value():
            return secret
        in_url = self._url_login[1]
        return in_url or None

    def read_username(self) -> str | None:
        """The user to log in as, from ``username`` or the URL; ``None`` for the default one."""
        return self.username or self._url_login[0] or None

    @property
    def _url_login(self) -> tuple[str, str]:
        login = urlsplit(self.url).netloc.rpartition("@")[0]
        user, _, password = login.partition(":")
        return unquote(user), unquote(password)


class Registry(Section):
    """Which checkpoints exist. All three are compared with the store; a mismatch is refused."""

    namespace: Name = "checkpointd"
    """The first part of every key. Daemons and applications of one registry share it."""

    environment: Name = "default"
    """A name for what this registry belongs to, such as production. A configuration that points at
    the store of another environment is refused before it expires anything there."""

    partitions: Annotated[int, Field(ge=1, le=1024)] = 16
    """How many slots the registry spreads over; fixed when it is created. More than 16 pays on a
    cluster; each costs the census one read."""


class Reconcile(Section):
    """Closing crash windows: checkpoints that were issued and never finalized."""

    every: Period = timedelta(minutes=1)
    """How often to look. Not above grace, or a crash waits two rounds to be seen."""

    grace: Period = timedelta(hours=1)
    """How long a writer may hold a ref open. Longer than the slowest honest turn: a turn that ends
    after it is refused. Zero would expire turns that are being written."""

    max_expiries: Annotated[int, Field(ge=1)] = 1000
    """The brake: more overdue at once than this, or than 5 % of the open refs if that is more, and
    expiry waits for an operator. When everything looks dead, doubt yourself."""


class Source(Section):
    """The legacy store. Only ever read."""

    url: Annotated[str, AfterValidator(_source_url)] = ""
    """Where the legacy checkpoints are: sqlite:///a/file, or python:package.module:factory for any
    saver. Empty for none: then only refs registered by applications are drained."""

    settle: Duration = timedelta(minutes=1)
    """A head younger than this is left for the next scan: its writer may be at work."""

    max_record: Bytes = Size(64 * 1024 * 1024)
    """A record larger than this is not decoded; its thread is quarantined as unreadable."""

    breakpoints: Words = ()
    """Nodes at which the application stops on purpose (interrupt_before): a thread waiting there
    counts as paused, since its rows look like those of a crash."""

    messages_channel: Annotated[str, Field(min_length=1)] = "messages"
    """The channel that holds the conversation."""


class Adopt(Section):
    """Entering what the source holds into the registry."""

    every: Period = timedelta(minutes=5)
    """How often to scan. One replica scans for all; heads that have not moved cost an id each."""

    page: Annotated[int, Field(ge=1, le=100_000)] = 500
    """Threads a page. Bounds the memory and the time between two signs of life."""


class Drain(Section):
    """Replaying legacy refs into the new format."""

    every: Period = timedelta(seconds=2)
    """How often to look for due refs at most; an idle drain looks less often."""

    concurrency: Annotated[int, Field(ge=1, le=1000)] = 16
    """Replays at once, in one daemon. The replayer's capacity divided by the replicas."""

    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 5
    """Attempts before a ref is quarantined. Counted before the replay, so that a ref which kills
    its process is counted too."""

    backoff_base: Period = timedelta(seconds=1)
    """The most that the second attempt waits; doubled for each further one, with full jitter."""

    backoff_cap: Period = timedelta(minutes=5)
    """The most that any attempt waits."""

    stall_after: Period = timedelta(minutes=30)
    """Refs are due and none has migrated for this long: the drain is called stalled."""

    settle: Duration = timedelta(seconds=30)
    """A scan that is to prove the end begins at least this long after the freeze: what was being
    written then has landed by then."""

    unanswered: Literal["quarantine", "truncate"] = "quarantine"
    """A closed thread whose last tool call was never answered: quarantine it for an operator, or
    truncate the record before the message that asked."""

    accept_unregistrable: bool = False
    """Whether the drain may end over threads whose ids the registry cannot hold."""

    exit_on_stuck_replay: bool = False
    """Whether the process exits, by code 70, when a replay goes on a lease.ttl after it was
    cancelled: the one way to stop code that ignores cancellation. It is counted in any case."""


class Lease(Section):
    """The right to replay one ref. A start is refused unless a renewal fits into the deadline
    (1.2 * renew_every + redis.timeout < deadline) and the deadline well into the ttl
    (1.5 * deadline <= ttl)."""

    ttl: Period = timedelta(seconds=15)
    """How long the store keeps the lease of a holder that is gone. Recovery after a kill takes as
    long."""

    deadline: Period = timedelta(seconds=10)
    """How long after its last renewal a holder stops by itself. Earlier than ttl by half of it, so
    that a slow clock or a late reply never makes two holders."""

    renew_every: Period = timedelta(seconds=2)
    """How often leases are renewed, give or take 20 %."""


class Replay(Section):
    """Who continues a legacy turn."""

    url: Annotated[str, AfterValidator(_replay_url)] = "turnstate:"
    """turnstate: writes turn states itself and runs no application code; python:package.module:factory
    calls yours; http://HOST:PORT/PATH posts to the application next door."""

    timeout: Period = timedelta(minutes=1)
    """A replay that takes longer is cancelled, and counts as failed by timeout."""


class Shutdown(Section):
    """Stopping."""

    grace: Duration = timedelta(seconds=30)
    """How long running replays may still take. Shorter than the pod's terminationGracePeriodSeconds
    or the unit's TimeoutStopSec, or the kill comes first."""


class Endpoint(Section):
    """/metrics, /livez, /readyz, /status.json and a page for people. Read-only, without passwords."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9464"
    """HOST:PORT, or empty for none. Loopback by default: thread counts and reasons are nobody
    else's business; in a pod set the pod's address."""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to bind; ``None`` where the endpoint is off."""
        return _listen_address(self.listen)


class Log(Section):
    """Lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written. A pass that did nothing is a debug line."""

    format: Literal["auto", "json", "console"] = "auto"
    """One JSON object a line, or a form for people; auto is console on a terminal only."""


class Settings(BaseModel):
    """Everything that can be set, frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    redis: Redis = Redis()
    registry: Registry = Registry()
    reconcile: Reconcile = Reconcile()
    source: Source = Source()
    adopt: Adopt = Adopt()
    drain: Drain = Drain()
    lease: Lease = Lease()
    replay: Replay = Replay()
    shutdown: Shutdown = Shutdown()
    endpoint: Endpoint = Endpoint()
    log: Log = Log()


RELOADABLE: frozenset[str] = frozenset(
    {
        "reconcile.every",
        "reconcile.grace",
        "reconcile.max_expiries",
        "adopt.every",
        "drain.every",
        "drain.concurrency",
        "drain.max_attempts",
        "drain.backoff_base",
        "drain.backoff_cap",
        "drain.stall_after",
        "log.level",
    }
)
"""What SIGHUP may change in a running daemon; anything else would need a connection, a lease or
a scan to begin anew."""

SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


# What values may stand beside each other -------------------------------------------------------


def _disagreements(s: Settings) -> Iterator[tuple[set[str], str]]:
    """Pairs of settings that contradict each other: the keys concerned, and a sentence."""
    renew, deadline, ttl = s.lease.renew_every, s.lease.deadline, s.lease.ttl
    if not 1.2 * renew + s.redis.timeout < deadline:
        yield (
            {"lease.renew_every", "lease.deadline", "redis.timeout"},
            f"lease.deadline {format_duration(deadline)} leaves no room for one renewal: it must be "
            f"longer than 1.2 * lease.renew_every + redis.timeout = "
            f"{format_duration(1.2 * renew + s.redis.timeout)}",
        )
    if not 1.5 * deadline <= ttl:
        yield (
            {"lease.deadline", "lease.ttl"},
            f"lease.ttl {format_duration(ttl)} is too short: it must be at least 1.5 * "
            f"lease.deadline = {format_duration(1.5 * deadline)}, or two holders may overlap",
        )
    if ttl < timedelta(seconds=1):
        yield {"lease.ttl"}, f"lease.ttl {format_duration(ttl)} is too short; 1s is the least"
    if s.drain.backoff_cap < s.drain.backoff_base:
        yield (
            {"drain.backoff_base", "drain.backoff_cap"},
            f"drain.backoff_cap {format_duration(s.drain.backoff_cap)} is below "
            f"drain.backoff_base {format_duration(s.drain.backoff_base)}; raise it",
        )
    passwords = {
        "redis.password": bool(s.redis.password.get_secret_value()),
        "redis.password_file": bool(s.redis.password_file),
        "redis.url": bool(s.redis._url_login[1]),
    }
    given = [key for key, there in passwords.items() if there]
    if len(given) > 1:
        yield set(given), f"{' and '.join(given)} each give a password; keep one of them"
    if s.redis.username and s.redis._url_login[0]:
        yield (
            {"redis.username", "redis.url"},
            "redis.username and redis.url each name a user; keep one of them",
        )
    if bool(s.redis.cert_file) != bool(s.redis.key_file):
        there, missing = ("cert", "key") if s.redis.cert_file else ("key", "cert")
        yield (
            {"redis.cert_file", "redis.key_file"},
            f"redis.{there}_file is set and redis.{missing}_file is not; a certificate needs its key",
        )
    plain = urlsplit(s.redis.url).scheme in ("redis", "unix", "embedded")
    for name in ("ca_file", "cert_file"):
        if plain and getattr(s.redis, name):
            yield (
                {f"redis.{name}", "redis.url"},
                f"redis.{name} is set but redis.url does not use TLS; write rediss://",
            )


def hints(settings: Settings) -> tuple[str, ...]:
    """What is allowed and probably not meant, a sentence each; for ``check-config`` and ``doctor``."""
    said: list[str] = []
    every, grace = settings.reconcile.every, settings.reconcile.grace
    if every > grace:
        said.append(
            f"reconcile.every {format_duration(every)} is longer than reconcile.grace "
            f"{format_duration(grace)}: a crash waits up to {format_duration(every + grace)} to be seen"
        )
    if settings.drain.stall_after <= settings.replay.timeout:
        said.append(
            f"drain.stall_after {format_duration(settings.drain.stall_after)} is not longer than "
            f"replay.timeout {format_duration(settings.replay.timeout)}: one slow replay looks like a stall"
        )
    return tuple(said)


# From a file and an environment to settings ----------------------------------------------------


def find_config(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to read: the one asked for, else CHECKPOINTD_CONFIG, else ./checkpointd.toml if there.

    ``None`` means the defaults. A file that was asked for and is missing is found here and
    refused by ``load_settings``.
    """
    if explicit is not None:
        return explicit
    if named := environ.get(ENV_FILE):
        return Path(named)
    beside = cwd / DEFAULT_FILE
    return beside if beside.exists() else None


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of ``path`` with those of ``environ`` laid over them.

    ``None`` reads no file. ``ConfigError`` carries every complaint at once.
    """
    where = str(path) if path is not None else ""
    complaints: list[str] = []
    origin: dict[str, str] = {}
    tables = _known_tables(_read_toml(path) if path is not None else {}, complaints)
    for name, section, key, text in _from_environ(environ, complaints):
        origin[f"{section}.{key}"] = name
        tables.setdefault(section, {})[key] = _typed(SECTIONS[section].model_fields[key], text)

    settings, failed = _validated(tables)
    for key, why in failed.items():
        complaints.append(f"{origin.get(key, key)}: {why}")
    complaints += [why for keys, why in _disagreements(settings) if not keys & failed.keys()]
    if complaints:
        raise ConfigError(complaints, where=where)
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    where = str(path)
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            ["there is no such file; write one (config.example.toml lists everything)"],
            where=where,
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError([f"it is not TOML: {error}"], where=where) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            [f"it is not UTF-8 text (byte {error.start}); save it as UTF-8"], where=where
        ) from error
    except OSError as error:
        raise ConfigError([f"it cannot be read ({_why(error)})"], where=where) from error


def _known_tables(raw: Mapping[str, Any], complaints: list[str]) -> dict[str, dict[str, Any]]:
    """The known keys of the known tables; a complaint for each of the others."""
    tables: dict[str, dict[str, Any]] = {}
    for section, table in raw.items():
        if section not in SECTIONS:
            complaints.append(_unknown_section(section, table))
        elif not isinstance(table, Mapping):
            complaints.append(f"{section} is a section; write [{section}] and its settings below")
        else:
            tables[section] = {}
            for key, value in table.items():
                if key in SECTIONS[section].model_fields:
                    tables[section][key] = value
                else:
                    complaints.append(_unknown_key(section, key))
    return tables


def _from_environ(
    environ: Mapping[str, str], complaints: list[str]
) -> Iterator[tuple[str, str, str, str]]:
    """Each variable that names a setting: itself, the section, the key, the text.

    Names without the double underscore are left alone: Kubernetes puts
    ``CHECKPOINTD_SERVICE_HOST`` and the like there for a service of our name. Only one that is a
    setting's but for the missing underscore is taken for a slip.
    """
    slips = {
        f"{ENV_PREFIX}{section}_{key}".upper(): f"{ENV_PREFIX}{section}__{key}".upper()
        for section, model in SECTIONS.items()
        for key in model.model_fields
    }
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX):
            continue
        section, separator, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        if not separator:
            if name in slips:
                complaints.append(f"{name} is not a setting; did you mean {slips[name]}?")
        elif section not in SECTIONS:
            complaints.append(f"{name}: {_unknown_section(section, {key: text})}")
        elif key not in SECTIONS[section].model_fields:
            complaints.append(f"{name}: {_unknown_key(section, key)}")
        else:
            yield name, section, key, text


def _typed(field: FieldInfo, text: str) -> Any:
    """What a variable's ``text`` would be in TOML; left as text where it cannot be that."""
    if field.annotation is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return words.get(text.strip().lower(), text)
    if field.annotation is int and not _is_size(field):
        try:
            return int(text)
        except ValueError:
            return text
    if field.annotation == tuple[str, ...]:
        if text.lstrip().startswith("["):
            try:
                return json.loads(text)
            except ValueError:
                return text
        return [word.strip() for word in text.split(",") if word.strip()]
    return text


def _validated(tables: dict[str, dict[str, Any]]) -> tuple[Settings, dict[str, str]]:
    """The settings, with a default where a value cannot be used, and why for each of those."""
    failed: dict[str, str] = {}
    sections: dict[str, Section] = {}
    for section, model in SECTIONS.items():
        values = dict(tables.get(section, {}))
        while True:
            try:
                sections[section] = model(**values)
                break
            except ValidationError as error:
                for one in error.errors(include_url=False):
                    key = str(one["loc"][0])
                    failed.setdefault(
                        f"{section}.{key}", _complaint(one, secret=_is_secret(model, key))
                    )
                    values.pop(key, None)
    return Settings(**sections), failed  # type: ignore[arg-type]  # a section each, by construction


def _complaint(error: Any, *, secret: bool) -> str:
    """One of pydantic's errors as a sentence of ours; a secret's value is not in it."""
    if (cause := error.get("ctx", {}).get("error")) is not None:
        return str(cause)
    given = MASK if secret else shortened(redacted(str(error["input"])))
    context = error.get("ctx", {})
    match error["type"]:
        case "literal_error":
            return f"{given} is none of {context['expected']}"
        case "greater_than_equal":
            return f"{given} is too small; {context['ge']:,} is the least"
        case "less_than_equal":
            return f"{given} is too large; {context['le']:,} is the most"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"{given} is no whole number"
        case "bool_type" | "bool_parsing":
            return f"{given} is neither true nor false"
        case "string_type":
            return f'{given} is no text; write it in "quotes"'
        case "tuple_type":
            return f'{given} is no list of texts; write ["one", "two"]'
        case "string_too_short":
            return "it is empty; give it a value"
        case _:
            return f"{given}: {error['msg'].lower()}"


def _unknown_section(section: str, value: object) -> str:
    if not isinstance(value, Mapping):
        homes = [name for name, model in SECTIONS.items() if section in model.model_fields]
        if homes:
            places = " or ".join(f"[{name}]" for name in homes)
            return f"{shortened(section)} stands outside a section; it belongs under {places}"
    return f"there is no section [{section[:80]}]{_did_you_mean(section, SECTIONS)}"


def _unknown_key(section: str, key: str) -> str:
    known = SECTIONS[section].model_fields
    homes = [name for name, model in SECTIONS.items() if key in model.model_fields]
    if homes:
        return f"there is no setting {section}.{key}; did you mean {homes[0]}.{key}?"
    return (
        f"there is no setting {section}.{key[:80]}{_did_you_mean(key, known, prefix=f'{section}.')}"
    )


def _did_you_mean(word: str, known: Mapping[str, object], *, prefix: str = "") -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; known are {', '.join(known)}"


# Showing them ----------------------------------------------------------------------------------


def describe(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings in force as a file would say them, JSON-safe, without secrets."""
    return {
        section: {
            key: _shown(getattr(getattr(settings, section), key)) for key in model.model_fields
        }
        for section, model in SECTIONS.items()
    }


def reloadable_changes(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """``old`` with what may change while running taken from ``new``, and what was refused.

    The refused are dotted names, in the order of the file; they need a restart.
    """
    sections: dict[str, Section] = {}
    refused: list[str] = []
    for section, model in SECTIONS.items():
        before, after = getattr(old, section), getattr(new, section)
        changed = [k for k in model.model_fields if getattr(before, k) != getattr(after, k)]
        taken = {k: getattr(after, k) for k in changed if f"{section}.{k}" in RELOADABLE}
        refused += [f"{section}.{k}" for k in changed if k not in taken]
        sections[section] = before.model_copy(update=taken)
    return Settings(**sections), refused  # type: ignore[arg-type]  # a section each


def example_toml() -> str:
    """``config.example.toml``: every setting at its default, under its reason."""
    lines = [
        "# checkpointd: every setting at its default, with its reason.",
        "#",
        "# Found by --config FILE, else CHECKPOINTD_CONFIG, else ./checkpointd.toml. A variable",
        "# CHECKPOINTD_<SECTION>__<KEY>, such as CHECKPOINTD_REDIS__URL, goes before the file.",
        '# Durations are text with a unit ("250ms", "15m", "1h30m"), sizes too ("64MiB").',
        "# [reload]: SIGHUP takes a change of it into a running daemon; the others need a restart.",
        "# `checkpointd check-config` prints what is in force.",
    ]
    for section, model in SECTIONS.items():
        lines += ["", "", *_commented(model.__doc__ or ""), f"[{section}]"]
        for key, field in model.model_fields.items():
            mark = " [reload]" if f"{section}.{key}" in RELOADABLE else ""
            choices = _choices(field)
            reason = f"{field.description or ''}{f' One of {choices}.' if choices else ''}{mark}"
            value = getattr(model(), key)
            written = "" if isinstance(value, SecretStr) else _shown(value)
            lines += ["", *_commented(reason), f"{key} = {json.dumps(written, ensure_ascii=False)}"]
    return "\n".join(lines) + "\n"


def _commented(text: str) -> list[str]:
    """``text`` as comment lines of at most 96 characters."""
    lines = ["#"]
    for word in text.split():
        if len(lines[-1]) + len(word) > 95:
            lines.append("#")
        lines[-1] += f" {word}"
    return lines


def _shown(value: object) -> Any:
    """A setting's value as a file says it; a secret only as being there."""
    match value:
        case SecretStr():
            return MASK if value.get_secret_value() else ""
        case timedelta():
            return format_duration(value)
        case Size():
            return format_size(value)
        case tuple():
            return list(value)
        case str():
            return redacted(value)
        case _:
            return value


def _choices(field: FieldInfo) -> str:
    return ", ".join(a for a in get_args(field.annotation) if isinstance(a, str))


def _is_size(field: FieldInfo) -> bool:
    return any(isinstance(m, BeforeValidator) and m.func is _size_of for m in field.metadata)


def _is_secret(model: type[Section], key: str) -> bool:
    field = model.model_fields.get(key)
    return field is not None and field.annotation is SecretStr


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
