"""Urls, passwords and servers that are unavailable: one clear error, in bounded time, without a secret in it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import monotonic, use
from penstock.db.databases import database
from penstock.db.postgresql import PostgreSQL
from penstock.db.target import check_url, connection_url, table_name
from penstock.errors import DatabaseAway, DatabaseError, DependencyError, NotThere, OptionError
from penstock.storage import secret
from penstock.testing import FakeClock
from tests.support.database import At, Driver, ten
from tests.support.postgres import Postgres

pytestmark = pytest.mark.xdist_group("db")
SECRET = "hunter2&?=%/@: ü"  # noqa: S105 - a password for a server of this test


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """Remove the wait between tries."""
    with use(FakeClock()):
        yield


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cr3t@host/db",
        "postgresql://me:s3cr3t@h1:5432,h2/db",
        "postgresql://me@host/db?sslmode=require&PassWord=s3cr3t",
        "postgresql:///db?password=s3cr3t",
        "mysql://me:s3cr3t@host/db",
        "s3cr3t",
        "postgres://me:s3?cr3t@host/s3cr3t",
        "postgresql://me:5?s3cr3t=b@host/db",
        "postgresql://me:5/s3cr3t@host/db",
        "postgresql://me:s3#s3cr3t@host/db",
        "postgresql://me:s3@s3cr3t@host/db",
        "postgresql://me%3As3cr3t@host/db",
        "postgresql://me::s3cr3t@host/db",
        "postgresql://:s3cr3t@host/db",
        "postgresql://me:@host/db?password=&password=s3cr3t",
        "postgresql://host/db?user=me&pass%77ord=s3cr3t",
        "postgresql://host/db?sslPassword=s3cr3t",
        "postgresql://host:s3cr3t/db",
        "postgresql://host/db?s3cr3t",
        "jdbc:postgresql://me:s3cr3t@host/db",
    ],
)
def test_url_with_a_password_is_refused(url: str) -> None:
    """A password in the url would be in plans and logs: it is refused and not shown, even if it is in the wrong place of the url."""
    with pytest.raises(OptionError) as error:
        check_url(url)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "meant"),
    [("jdbc:postgresql://h/db", "postgresql://h/db"), ("postgresql+psycopg2://h/db", "postgresql://h/db")],
)
def test_url_of_another_library(url: str, meant: str) -> None:
    """A url as Spark's JDBC and SQLAlchemy write it: the error says what to leave out, and then the url works."""
    with pytest.raises(OptionError, match=r"without jdbc: before it, and without a \+driver"):
        check_url(url)
    check_url(meant)


@pytest.mark.parametrize(
    "url", ["sqlite://x.db", "sqlite:///", "sqlite:///a/", "sqlite:///:memory:", "sqlite:///a?mode=ro"]
)
def test_url_of_no_file_is_refused(url: str) -> None:
    """SQLite needs an absolute path, since each of Spark's processes has its own working directory; url parameters are refused."""
    with pytest.raises(OptionError, match="absolute path"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d",
        "postgres://u@h:1/d?sslmode=require",
        "postgresql:///?host=/a:b@c",
        "postgresql://u@[::1]:5,h2/d?target_session_attrs=read-write",
        "postgresql://%2Ftmp/d",
        "postgresql://",
        "postgresql://me:@h/d",
        "postgresql://me%3A@h/d",
        "postgresql://:@h/d",
        "postgresql://me@h/d?password=&sslpassword=",
    ],
)
def test_url_is_given_what_a_connection_needs(url: str) -> None:
    """libpq gets the password, quoted; what the user said about a connection stays; an empty password counts as none."""
    check_url(url)
    whole = connection_url(url + ("&" if "?" in url else "?") + "connect_timeout=3", SECRET)
    assert whole.count("connect_timeout") == 1
    assert whole.endswith("password=hunter2%26%3F%3D%25%2F%40%3A%20%C3%BC")


@pytest.mark.parametrize(
    ("text", "parts"),
    [("t", ("t",)), ("s.t", ("s", "t")), ('"a.b"', ("a.b",)), ('s."a""."', ("s", 'a".')), ("T x", ("T x",))],
)
def test_table_names(text: str, parts: tuple[str, ...]) -> None:
    """A dot separates the schema, unless it is in quotes; case stays as it is."""
    assert table_name(text, option="table") == parts


@pytest.mark.parametrize("text", ["", "a.b.c", 'a"b', '"', ".t", "t."])
def test_what_is_no_name_is_refused(text: str) -> None:
    """Half a quote or a third part is a mistake, not a name."""
    with pytest.raises(OptionError, match="is not the name of a table"):
        table_name(text, option="table")


def test_password_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is read from the environment or a file, without the line end; a missing variable or file is named."""
    monkeypatch.setenv("PENSTOCK_TEST_PASSWORD", SECRET)
    (tmp_path / "p").write_text(f"{SECRET}\n", encoding="utf-8")
    assert secret("env:PENSTOCK_TEST_PASSWORD", "password") == secret(f"file:{tmp_path}/p", "password") == SECRET
    with pytest.raises(OptionError, match="no variable 'NOT_SET'"):
        secret("env:NOT_SET", "password")
    with pytest.raises(
        OptionError, match=r"password='file:.*/nothing': this process finds no such file; put it there"
    ) as missing:
        secret(f"file:{tmp_path}/nothing", "password")
    assert isinstance(missing.value.__cause__, NotThere)
    (tmp_path / "nothing").write_text(SECRET)
    assert secret(f"file:{tmp_path}/nothing", "password") == SECRET
    (tmp_path / "p").write_bytes(b"\xef\xbb\xbf" + SECRET.encode() + b"\r\n")
    assert secret(f"file:{tmp_path}/p", "password") == SECRET, "as some editors save it"
    for word in (b"\xff", b"a\0b"):
        (tmp_path / "p").write_bytes(word)
        with pytest.raises(OptionError, match="not text in UTF-8"):
            secret(f"file:{tmp_path}/p", "password")


def test_wrong_password(postgres: Postgres, tmp_path: Path) -> None:
    """The right password works; a wrong one is an error at once, in the server's words, without the password."""
    rules = Path(postgres.directory) / "pg_hba.conf"
    rules.write_text("local all clerk scram-sha-256\n" + rules.read_text())
    quoted = SECRET.replace("'", "''")
    postgres.psql(
        f"CREATE ROLE clerk LOGIN PASSWORD '{quoted}'; GRANT ALL ON SCHEMA public TO clerk; SELECT pg_reload_conf()"
    )
    url = postgres.url.replace("postgres@", "clerk@")
    for word, right in ((SECRET, True), (SECRET + "x", False), (None, False)):
        client = database(url, lambda word=word: word)  # type: ignore[misc]  # - a lambda of no arguments
        try:
            if right:
                assert client.run(lambda db: db.execute("SELECT 1")) == [(1,)]
            else:
                with pytest.raises(DatabaseError, match="password") as error:
                    client.run(lambda db: db.execute("SELECT 1"))
                assert not isinstance(error.value, DatabaseAway)
                assert "hunter2" not in f"{error.value}{error.value.__cause__}"
        finally:
            client.close()


@pytest.mark.parametrize(
    "bad", ["sslmode=nonsense", "connect_timeout=x", "nonsense=1", "port=x", "application_name=%zz", "service=nowhere"]
)
def test_parameter_that_is_wrong(postgres: Postgres, bad: str) -> None:
    """libpq's message about a parameter is the error, at once; it does not contain the password, which libpq has by then."""
    url = f"postgresql://postgres@/postgres?host={postgres.directory}&{bad}"
    with pytest.raises(DatabaseError, match=bad.partition("=")[2].strip("%1") or "nonsense") as error:
        database(url, lambda: SECRET).run(lambda db: db.execute("SELECT 1"))
    assert not isinstance(error.value, DatabaseAway)
    assert "hunter2" not in f"{error.value}{error.value.__cause__}"


def test_nobody_listens() -> None:
    """A server that is down is `DatabaseAway`, after some tries with growing pauses, and the error names it."""
    before = monotonic()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://me@127.0.0.1:{free.getsockname()[1]}/x"
        with pytest.raises(DatabaseAway, match=r"tried 8 times.*refused.*see that it runs"):
            database(url, lambda: None).run(lambda db: db.execute("SELECT 1"))
    assert monotonic() - before == pytest.approx(12.7)


def test_no_such_database(postgres: Postgres) -> None:
    """An error that waiting cannot solve is not tried again."""
    with pytest.raises(DatabaseError, match='database "nowhere" does not exist'):
        database(postgres.url.replace("/postgres?", "/nowhere?"), lambda: None).run(lambda db: db.execute("SELECT 1"))


def test_server_that_comes_back(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: the server restarts between two batches: the open connection is replaced automatically."""
    place = at(postgres.url)
    driver = Driver(place)
    driver.run(0, ten(0))
    postgres.restart()
    driver.run(1, ten(1))
    assert len(place.rows()) == 20


@pytest.mark.parametrize("content", [b"not a database" * 100, None])
def test_file_of_something_else(at: At, tmp_path: Path, content: bytes | None) -> None:
    """A file that is not a database, or whose directory is missing, is an error that names it; the file is not replaced."""
    path = tmp_path / "x.db" if content else tmp_path / "none" / "x.db"
    if content:
        path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"x\.db.* (not a database|its directory is there)"):
        Driver(at(f"sqlite://{path}")).begin(0)
    assert not content or path.read_bytes() == content


def test_sqlite_has_neither_schemas_nor_passwords(at: At, tmp_path: Path) -> None:
    """What SQLite would ignore is refused."""
    place = at(f"sqlite://{tmp_path}/x.db")
    for options in ({"table": "a.b"}, {"batchTable": "a.b"}, {"password": "env:X"}):
        with pytest.raises(OptionError, match="neither passwords nor schemas"):
            place.sink(**options)


def test_commits_are_synced(postgres: Postgres, tmp_path: Path) -> None:
    """If the server does not wait for its disk, our sessions do; stricter settings stay. SQLite syncs as much as it can."""
    client = database(f"sqlite://{tmp_path}/x.db", lambda: None)
    assert client.run(lambda db: db.execute("PRAGMA synchronous")) == [(3,)]
    client.close()
    for said, meant in (("off", "on"), ("remote_apply", "remote_apply"), ("local", "local")):
        client = PostgreSQL(f"{postgres.url}&options=-c%20synchronous_commit%3D{said}", lambda: None)
        assert client.run(lambda db: db.execute("SELECT current_setting($1)", "synchronous_commit")) == [(meant,)]
        client.close()


def test_what_the_url_says_of_a_session_stands(postgres: Postgres) -> None:
    """The url may override our limits and zone; text is in UTF-8 whatever the url says."""
    said = "-c%20lock_timeout%3D7s%20-c%20TimeZone%3DAsia/Tokyo%20-c%20client_encoding%3DLATIN1%20-c%20statement_timeout%3D100"
    for url, lock, zone in ((postgres.url, "5s", "UTC"), (f"{postgres.url}&options={said}", "7s", "Asia/Tokyo")):
        client = database(url, lambda: None)
        sql = "SELECT " + ", ".join(
            f"current_setting('{name}')" for name in ("lock_timeout", "TimeZone", "client_encoding")
        )
        assert client.run(lambda db, sql=sql: db.execute(sql)) == [(lock, zone, "UTF8")]  # type: ignore[misc]  # - a default binds it
        client.close()
    with pytest.raises(DatabaseError, match="statement timeout"):
        client.run(lambda db: db.execute("SELECT pg_sleep(60)"))


def test_server_that_only_reads(postgres: Postgres, at: At) -> None:
    """A standby is reported at once, and not tried again."""
    with pytest.raises(DatabaseError, match="read-only transaction") as error:
        Driver(at(f"{postgres.url}&options=-c%20default_transaction_read_only%3Don")).begin(0)
    assert not isinstance(error.value, DatabaseAway)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_process_that_ends_says_nothing(postgres: Postgres, tmp_path: Path, kind: str) -> None:
    """A process that ends with an open connection closes it properly; otherwise the drivers complain."""
    url = postgres.url if kind == "postgresql" else f"sqlite://{tmp_path}/x.db"
    code = f"from penstock.db.databases import database\nd = database({url!r}, lambda: None)\nd.run(lambda db: db.execute('SELECT 1'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error says how to install it."""
    monkeypatch.setattr(PostgreSQL, "driver", "adbc_driver_of_nobody")
    with pytest.raises(DependencyError, match=r"pip install 'penstock\[db\]'"):
        database("postgresql://h/d", lambda: None)
