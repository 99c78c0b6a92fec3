"""Which references pass, and that hostile ones do not, however they are spelt."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.jobs.references import ReferencePolicy

OPEN = ReferencePolicy()
FILES = ReferencePolicy(file_roots=("/srv/data", "/srv/me/my docs/"))


@pytest.mark.parametrize(
    "uri",
    [
        "s3://in/a.pdf",
        "S3://in/a.pdf",
        "s3://bucket",
        "s3://bucket/",
        "s3://my.bucket-1/deep/er/key.json",
        "s3://b/..hidden/a...b/c..",
        "s3://b/a%20b/100%.pdf",
        "s3://b/grüße/日本.pdf",
        "s3://b/a+b&c=d,e;f@g:h",
        "s3://b/key?versionId=abc123",
        "gs://bucket/x#1234",
        "az://container/x",
        "az://$web/index.html",
        "abfs://container@account.dfs.core.windows.net/x/y",
        "abfs://container/x",
        "https://example.com/a/b?page=2&tokens=5&max_tokens=9",
        "https://example.com:8443/a",
        "https://[2001:db8::1]/a",
        "HTTPS://EXAMPLE.COM/A",
        "https://account.blob.core.windows.net/container/blob?sv=2024-01-01",
    ],
)
def test_allowed(uri: str) -> None:
    assert OPEN.check(uri) is None


SCHEMES = [
    "",
    "a.pdf",
    "/etc/passwd",
    "//host/x",
    "s3:bucket/x",
    "s3:/bucket/x",
    "://bucket/x",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "http://example.com/x",
    "ftp://example.com/x",
    "javascript://x/%0aalert(1)",
    "data:text/plain,hi",
    "gopher://x/1",
    "s3a://bucket/x",
    "1s3://bucket/x",
    "s3 ://bucket/x",
    " s3://bucket/x",
    "jar:https://example.com/x",
]
AUTHORITIES = [
    "s3://",
    "s3:///key",
    "s3://?x=1",
    "s3://#x",
    "https://",
    "https:///path",
    "https://user:pass@example.com/x",
    "https://user@example.com/x",
    "https://:pass@example.com/x",
    "https://example.com@evil.example/x",
    "https://example.com%40evil.example/x",
    "https://example.com:99999/x",
    "https://example.com:0/x",
    "https://example.com:x/x",
    "https://exa mple.com/x",
    "https://example..com/x",
    "https://-example.com/x",
    "https://еxample.com/x",
    "s3://AKIA:secret@bucket/x",
    "s3://key@bucket/x",
    "s3://bucket:80/x",
    "s3://../x",
    "s3://./x",
    "s3://%2e%2e/x",
    "s3://buc%6bet/x",
    "gs://-bucket/x",
    "abfs://c:pw@account.dfs.core.windows.net/x",
    "abfs://a@b@account.dfs.core.windows.net/x",
    "abfs://@account.dfs.core.windows.net/x",
    "abfs://c@/x",
]
TRAVERSALS = [
    "s3://b/..",
    "s3://b/../x",
    "s3://b/a/../../x",
    "s3://b/a/..",
    "s3://b/./x",
    "s3://b/%2e%2e/x",
    "s3://b/%2E%2E/x",
    "s3://b/.%2e/x",
    "s3://b/a%2f..%2fx",
    "s3://b/a%2F%2e%2e%2Fx",
    "s3://b/%252e%252e/x",
    "s3://b/%25252e%25252e/x",
    "s3://b/a%252f..%252fx",
    "s3://b/..\\x",
    "s3://b/a\\..\\x",
    "s3://b/a%5c..%5cx",
    "s3://b/a%255c..%255cx",
    "s3://b/%c0%ae%c0%ae/x",
    "s3://b/%e0%80%ae/x",
    "s3://b/..;/x",
    "s3://b/..;a=b/x",
    "s3://b/．．/x",
    "s3://b/‥/x",
    "s3://b/%ef%bc%8e%ef%bc%8e/x",
    "s3://b/x?/../y",
    "s3://b/x%3f/%2e%2e/y",
    "s3://b/%20../x%20/ ..",
    "s3://b/..%20/x",
    "s3://b/..%00/x",
    "s3://b/%2525252525252e/x",
    "https://example.com/a/..%2f..%2fetc/passwd",
]
CHARACTERS = [
    "s3://b/a b",
    "s3://b/a\tb",
    "s3://b/a\nb",
    "s3://b/a\r\nX-Evil: 1",
    "s3://b/a\x00b",
    "s3://b/a%00b",
    "s3://b/a%0d%0ab",
    "s3://b/a%250ab",
    "s3://b/a\x7f",
    "s3://b/a\x85",
    "s3://b/a\u2028b",
    "s3://b/a\u00a0b",
    "s3://b/a\u200bb",
    "s3://b/a\u202efdp.exe",
    "s3://b/%ff",
    "s3://b/" + "x" * 2048,
]
CREDENTIALS = [
    "https://a.blob.core.windows.net/c/b?sv=2024&sig=hunter2",
    "https://a.blob.core.windows.net/c/b?SIG=hunter2",
    "https://a.blob.core.windows.net/c/b?%73ig=hunter2",
    "https://a.blob.core.windows.net/c/b?%2573ig=hunter2",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=hunter2",
    "https://b.s3.amazonaws.com/k?x-amz-credential=hunter2&x=1",
    "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=hunter2",
    "https://b.s3.amazonaws.com/k?AWSAccessKeyId=hunter2&Expires=1",
    "https://storage.googleapis.com/b/k?X-Goog-Signature=hunter2",
    "https://example.com/x?token=hunter2",
    "https://example.com/x?a=1&access_token=hunter2",
    "https://example.com/x?a=1;api_key=hunter2",
    "https://example.com/x?apikey=hunter2",
    "https://example.com/x?password=hunter2",
    "https://example.com/x?db-password=hunter2",
    "https://example.com/x?client_secret=hunter2",
    "https://example.com/x#access_token=hunter2",
    "https://example.com/x?a=1?sig=hunter2",
    "https://example.com/x%3fsig=hunter2",
    "az://c/DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hunter2",
    "az://c/x;AccountKey%3Dhunter2",
    "az://c/x?SharedAccessSignature=hunter2",
]
HOSTILE = SCHEMES + AUTHORITIES + TRAVERSALS + CHARACTERS + CREDENTIALS


def test_there_are_enough_of_them() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 100


@pytest.mark.parametrize("uri", HOSTILE, ids=lambda uri: ascii(uri)[:60])
def test_hostile(uri: str) -> None:
    reason = OPEN.check(uri)
    assert reason
    assert "hunter2" not in reason
    assert "pass@" not in reason
    assert "secret" not in reason


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/data/a.pdf",
        "FILE:///srv/data/a/b",
        "file://localhost/srv/data/a",
        "file:////srv//data/a",
        "file:///srv/me/my%20docs/x.txt",
        "file:///srv/data/.lucius/x",
    ],
)
def test_files_below_a_root(uri: str) -> None:
    assert FILES.check(uri) is None


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "file:///srv/data",
        "file:///srv/data/",
        "file:///srv/database/x",
        "file:///srv/data/../x",
        "file:///srv/data/%2e%2e/x",
        "file:///srv/data/%252e%252e/x",
        "file:///srv/data%2fx",
        "file://evil.example/srv/data/x",
        "file://srv/data/x",
        "file:///srv/data/x?y",
        "file:///srv/data/x#y",
        "file:/srv/data/x",
        "file:///SRV/data/x",
        "file://user:pw@/srv/data/x",
        "file:///srv/data\\x",
    ],
)
def test_files_elsewhere(uri: str) -> None:
    assert FILES.check(uri)
    assert OPEN.check(uri)


DATA = ReferencePolicy(file_roots=("/srv", "/srv/data"), data="/srv/data")


@pytest.mark.parametrize(
    "path",
    [
        "lucius.db",
        "lucius.db-wal",
        "LUCIUS.DB",
        "lucius.lock",
        "dev.lock",
        "storage",
        ".storage.12",
        "keys/callback-keys.json",
        "x//..%2fkeys/callback-keys.json",
        "%6beys/callback-keys.json",
        "nats/jetstream/x",
        "temporal/temporal.db",
        "azurite/process.json",
        "results-ocr.db",
        "app-configuration.json",
        "workspace/lucius/other/job_1/ocr/1/output.txt",
        "workspace/lucius/acme/else/job_1/ocr/1/output.txt",
        "workspace/lucius/acme",
        "workspace/lucius",
        "workspace/x",
    ],
)
def test_no_reference_leads_to_what_is_ours_or_anothers(path: str) -> None:
    assert DATA.check(f"file:///srv/data/{path}", "acme") is not None


@pytest.mark.parametrize(
    "path",
    [
        "data/letter.pdf",
        "data/documents/keys/letter.pdf",
        "data/sample/answer.json",
        "data/workspace/lucius/acme/job_1/ocr/1/output.txt",
        "keys/letter.pdf",
    ],
)
def test_all_else_in_the_data_folder_may_be_named(path: str) -> None:
    assert DATA.check(f"file:///srv/{path}", "acme") is None


def test_file_in_the_schemes_without_roots_is_nowhere() -> None:
    assert ReferencePolicy(schemes=frozenset({"file"})).check("file:///srv/data/x")


def test_allow_lists() -> None:
    policy = ReferencePolicy(
        hosts=frozenset({"good.example", "acc.dfs.core.windows.net"}), containers=frozenset({"in", "out"})
    )
    assert policy.check("s3://in/x") is None
    assert policy.check("https://Good.Example/x") is None
    assert policy.check("https://good.example:8443/x") is None
    assert policy.check("abfs://in@acc.dfs.core.windows.net/x") is None
    assert policy.check("s3://other/x")
    assert policy.check("s3://IN/x")
    assert policy.check("https://good.example.evil.example/x")
    assert policy.check("https://evil.example/good.example")
    assert policy.check("abfs://other@acc.dfs.core.windows.net/x")
    assert policy.check("abfs://in@evil.example/x")


def test_schemes_are_a_choice() -> None:
    policy = ReferencePolicy(schemes=frozenset({"s3"}))
    assert policy.check("s3://b/x") is None
    assert policy.check("gs://b/x") == "the scheme gs is not allowed"


@given(st.text(max_size=40))
def test_any_text_is_judged(text: str) -> None:
    for uri in (text, f"s3://b/{text}", f"https://h/{text}", f"file:///srv/data/{text}"):
        reason = FILES.check(uri)
        assert reason is None or reason
        if reason is None:
            assert "\\" not in uri
            assert not any(segment == ".." for segment in uri.split("/"))


@given(
    st.lists(st.sampled_from(["..", "%2e", "/", "%2f", "a", ".", "%25", "2e", "5c", "%5c", ";"]), max_size=12)
)
def test_nothing_that_passes_decodes_to_a_traversal(parts: list[str]) -> None:
    uri = "s3://b/" + "".join(parts)
    if OPEN.check(uri) is None:
        decoded = uri
        for _ in range(6):
            decoded = unquote(decoded)
            assert not {"..", "."} & set(decoded.replace("\\", "/").split("/"))
