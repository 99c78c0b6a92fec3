"""A tenant reaches its own workspace by the reference that directives carry, and nobody else's by any."""

import posixpath
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.jobs.new_job import workspace_uri
from lucius.jobs.references import ReferencePolicy

DATA = ReferencePolicy(file_roots=("/srv", "/srv/data"), data="/srv/data")
WORKSPACE_ROOT = "file:///srv/data/workspace"


@pytest.mark.parametrize("tenant", ["a/b", "a/b/c", "a b/ö", "a%2fb", "a/%2f", "a%/b", "lucius/a"])
def test_a_tenant_names_its_own_workspace_as_directives_do(tenant: str) -> None:
    workspace = workspace_uri(WORKSPACE_ROOT, tenant, "job_1")
    assert DATA.check(f"{workspace}ocr/1/output.txt", tenant) is None
    for stranger in ("a", "b", "a/b/", "a//b", "other", ""):
        assert DATA.check(f"{workspace}ocr/1/output.txt", stranger) is not None


@pytest.mark.parametrize(
    "path",
    [
        "workspace/lucius/a%2fb/job_1/x",  # not as it is spelt in directives
        "workspace/lucius/a%252Fb/job_1/x",  # that of a tenant called a%2fb
        "workspace/lucius/a%25252Fb/job_1/x",
        "workspace/lucius/a%2F%2Fb/job_1/x",
        "workspace/lucius/a%2Fb%2Fjob_1/x",
        "workspace/lucius/a%2Fb/job_1%2Fx",
        "workspace/lucius/a%2Fb/job_1/..%2Fx",
        "workspace/lucius/a%2Fb/x",
        "workspace/lucius/a%2Fb/c/job_1/x",
        "workspace/lucius/a/a%2Fb/job_1/x",
        "workspace%2Flucius/a%2Fb/job_1/x",
        "workspace/a%2Fb/job_1/x",
        "documents/a%2Fb/x",
    ],
)
def test_nothing_else_may_hold_an_encoded_slash(path: str) -> None:
    assert DATA.check(f"file:///srv/data/{path}", "a/b") is not None


@pytest.mark.parametrize("tenant", ["keys/callback-keys.json", "../keys", "nats/x", "workspace/lucius"])
def test_no_tenants_name_leads_to_what_is_ours(tenant: str) -> None:
    """Not even where the data folder is called as the folder of all workspaces is."""
    policy = ReferencePolicy(file_roots=("/srv",), data="/srv/lucius")
    assert policy.check(f"file:///srv/lucius/{quote(tenant, safe='')}", tenant) is not None


_NAMES = st.text(alphabet="ab/%2fF5.;", min_size=1, max_size=8)


@given(_NAMES, _NAMES)
def test_no_spelling_of_a_workspace_is_anothers(tenant: str, other: str) -> None:
    tenant, other = tenant.lower(), other.lower()
    spelt = [workspace_uri(WORKSPACE_ROOT, other, "job_1"), f"{WORKSPACE_ROOT}/lucius/{other}/job_1/"]
    for workspace in spelt:
        if tenant != other and DATA.check(f"{workspace}x", tenant) is None:
            plain = posixpath.normpath(unquote(workspace.removeprefix("file://")))
            assert plain == f"/srv/data/workspace/lucius/{tenant}/job_1"
            assert workspace != spelt[0], "as directives spell it, a workspace is one tenant's alone"


@given(st.lists(st.text(alphabet="ab%2f_-", min_size=1, max_size=4), min_size=1, max_size=3))
def test_every_tenant_reaches_its_own_workspace(names: list[str]) -> None:
    tenant = "/".join(names)
    workspace = workspace_uri(WORKSPACE_ROOT, tenant, "job_1")
    reason = DATA.check(f"{workspace}x", tenant)
    assert reason is None or "too many times over" in reason or "UTF-8" in reason
