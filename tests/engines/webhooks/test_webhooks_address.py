"""Webhooks never reach a private address: not by its spelling, not by a name, not by a change of mind."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_address

import pytest
from tests.support.webhook_receiver import connections, receiver, status_line

from lucius.engines.webhooks.address import CallbackPolicy, is_public, system_resolver
from lucius.engines.webhooks.sender import DeliveryOutcome, WebhookSender

SECRETS = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",)
PUBLIC = "93.184.215.14"
OPEN = CallbackPolicy(schemes=frozenset({"https", "http"}))

# The door refuses these by their text alone.
HOSTILE_TEXTS = [
    "https://127.0.0.1/",
    "https://127.0.0.1:8420/v1/jobs",
    "https://127.1/",
    "https://127.0.1/",
    "https://127.255.255.254/",
    "https://2130706433/",
    "https://017700000001/",
    "https://0x7f000001/",
    "https://0x7f.0x0.0x0.0x1/",
    "https://0X7F.1/",
    "https://0177.0.0.1/",
    "https://127.0.0.01/",
    "https://127.0.0.1./",
    "https://00000127.0.0.1/",
    "https://0/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://10.255.255.255/",
    "https://167772161/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.0.1/",
    "https://192.168.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://2852039166/latest/meta-data/",
    "https://0xa9fea9fe/",
    "https://0251.0376.0251.0376/",
    "https://168.63.129.16/metadata",
    "https://100.64.0.1/",
    "https://100.100.100.200/",
    "https://100.127.255.255/",
    "https://192.0.0.192/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.7/",
    "https://203.0.113.9/",
    "https://192.88.99.1/",
    "https://224.0.0.1/",
    "https://239.255.255.250/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::ffff:169.254.169.254]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:0:127.0.0.1]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[100::1]/",
    "https://[2001:db8::1]/",
    "https://[2001:0:7f00:1::]/",  # Teredo
    "https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/",
    "https://[2002:7f00:1::1]/",  # 6to4 of 127.0.0.1
    "https://[2002:a00:1::]/",
    "https://[2002:a9fe:a9fe::]/",
    "https://[64:ff9b::7f00:1]/",  # NAT64 of 127.0.0.1
    "https://[64:ff9b::169.254.169.254]/",
    "https://[64:ff9b:1::8.8.8.8]/",
    "https://[2a00:1450:4001:81b:0:5efe:a00:1]/",  # ISATAP of 10.0.0.1
    "https://[3fff::1]/",
    "https://[5f00::1]/",
    "https://localhost/",
    "https://LOCALHOST:443/",
    "https://localhost./",
    "https://a.localhost/",
    "https://metadata.google.internal/computeMetadata/v1/",
    "https://printer.local/",
    "https://hooks.example.com@127.0.0.1/",
    "https://hooks.example.com:443@127.0.0.1/",
    "https://127.0.0.1\\@hooks.example.com/",
    "https://127.0.0.1%2f@hooks.example.com/",
    "https://127%2e0.0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",
    "https://hooks.example.com\t.evil/",
    "https://hooks.example.com\r\nHost: internal/",
    "https:///etc/passwd",
    "https://",
    "https:127.0.0.1/",
    "//127.0.0.1/",
    "ftp://127.0.0.1/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_SET",
    "https://[::1",
    "https://[127.0.0.1]/",
    "https://127.0.0.1:99999/",
]

# Good text; the look-up answers with these.
HOSTILE_ANSWERS = [
    ["127.0.0.1"],
    ["10.1.2.3"],
    ["169.254.169.254"],
    ["100.64.1.1"],
    ["168.63.129.16"],
    ["0.0.0.0"],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["::ffff:10.0.0.1"],
    ["fe80::1%1"],
    ["fd00::1"],
    ["64:ff9b::a00:1"],
    ["2002:c0a8:101::1"],
    [PUBLIC, "127.0.0.1"],
    ["127.0.0.1", PUBLIC],
    [PUBLIC, "::1"],
    [PUBLIC] * 3 + ["192.168.1.1"],
    ["not an address"],
    [],
]


class Names:
    """A name service that gives its answers one after the other, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def webhook_sender(policy: CallbackPolicy, names: Names, *, seconds: float = 5.0) -> WebhookSender:
    return WebhookSender(policy, names, lambda: SECRETS, user_agent="test", send_seconds_max=seconds)


async def post(one: WebhookSender, url: str) -> tuple[DeliveryOutcome, str | None]:
    try:
        sent = await one.send(url, webhook_id="msg_1", body=b"{}", now_ms=1_800_000_000_000)
    finally:
        await one.close()
    return sent.outcome, sent.problem


def test_there_are_enough_of_them() -> None:
    assert len(set(HOSTILE_TEXTS)) == len(HOSTILE_TEXTS) >= 60


@pytest.mark.parametrize("url", HOSTILE_TEXTS)
async def test_a_hostile_url_opens_no_socket(url: str) -> None:
    reason = OPEN.check(url)
    assert reason is not None
    assert "http" not in reason  # what was sent is not repeated
    names = Names(["127.0.0.1"])
    with connections(made=False) as seen:
        assert await post(webhook_sender(OPEN, names), url) == (DeliveryOutcome.REFUSED, reason)
    assert seen == []
    assert names.asked == []


@pytest.mark.parametrize("addresses", HOSTILE_ANSWERS)
async def test_a_name_with_one_bad_address_opens_no_socket(addresses: list[str]) -> None:
    with connections(made=False) as seen:
        fate, problem = await post(webhook_sender(OPEN, Names(addresses)), "https://hooks.example.com/a")
    assert seen == []
    assert fate is DeliveryOutcome.FAILED  # names change: it is tried again, and judged again
    assert problem is not None


@pytest.mark.parametrize("url", ["https://hooks.example.com/a", "http://hooks.example.com:8080/a"])
async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(url: str) -> None:
    """An answer that changes after the check changes nothing."""
    names = Names([PUBLIC], ["127.0.0.1"])
    with connections(made=False) as seen:
        fate, _ = await post(webhook_sender(OPEN, names), url)
    assert (names.asked, seen, fate) == (["hooks.example.com"], [PUBLIC], DeliveryOutcome.FAILED)


async def test_an_answer_that_turned_bad_before_the_second_try_is_refused() -> None:
    names = Names([PUBLIC], ["127.0.0.1"])
    one = webhook_sender(OPEN, names)
    with connections(made=False) as seen:
        await post(one, "https://hooks.example.com/a")
        fate, problem = await post(one, "https://hooks.example.com/a")
    assert seen == [PUBLIC]
    assert (fate, problem) == (
        DeliveryOutcome.FAILED,
        "the host has a private address, which the policy does not allow",
    )


async def test_every_checked_address_is_tried_in_order_and_few_of_them() -> None:
    addresses = ["93.184.215.1", "2606:2800:21f::1", "93.184.215.3", "93.184.215.4"]
    with connections(made=False) as seen:
        await post(webhook_sender(OPEN, Names(addresses)), "https://hooks.example.com/a")
    assert seen == addresses[:3]


async def test_a_literal_address_is_not_looked_up() -> None:
    names = Names(["127.0.0.1"])
    with connections(made=False) as seen:
        await post(webhook_sender(OPEN, names), f"https://{PUBLIC}/a")
        await post(webhook_sender(OPEN, names), "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/a")
    assert seen == [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]
    assert names.asked == []


async def test_a_redirect_to_a_private_address_is_not_followed() -> None:
    policy = CallbackPolicy(schemes=frozenset({"http"}), private_allowed=True)
    async with receiver() as inner:
        there = f"location: http://127.0.0.1:{inner.port}/secret"
        async with receiver(lambda request: status_line(307, there)) as outer:
            url = f"http://hooks.example.com:{outer.port}/a"
            fate, problem = await post(webhook_sender(policy, Names(["127.0.0.1"])), url)
    assert (fate, problem) == (
        DeliveryOutcome.FAILED,
        "the receiver answered 307; redirects are not followed",
    )
    assert len(outer.received) == 1
    assert inner.received == []


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = CallbackPolicy(schemes=frozenset({"http"}), private_allowed=True)
    async with receiver() as proxy, receiver() as target:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        url = f"http://hooks.example.com:{target.port}/a"
        fate, _ = await post(webhook_sender(policy, Names(["127.0.0.1"])), url)
    assert fate is DeliveryOutcome.DELIVERED
    assert proxy.received == []
    assert target.received[0].headers["host"] == f"hooks.example.com:{target.port}"


async def test_a_look_up_that_fails_or_hangs_is_a_failed_try() -> None:
    class Broken(Names):
        async def __call__(self, host: str, port: int) -> Sequence[str]:
            raise OSError("no such name")

    class Hanging(Names):
        async def __call__(self, host: str, port: int) -> Sequence[str]:
            await asyncio.sleep(60)
            return []

    url = "https://hooks.example.com/a"
    assert (await post(webhook_sender(OPEN, Broken([])), url))[0] is DeliveryOutcome.FAILED
    assert (await post(webhook_sender(OPEN, Hanging([]), seconds=0.2), url)) == (
        DeliveryOutcome.FAILED,
        "no answer within 0.2 s",
    )


def test_https_alone_unless_the_policy_says_otherwise() -> None:
    assert CallbackPolicy().check("http://hooks.example.com/a") == "the scheme http is not allowed"
    assert CallbackPolicy().check("https://hooks.example.com/a") is None


def test_the_list_of_hosts_opens_no_private_address() -> None:
    policy = CallbackPolicy(hosts=frozenset({"hooks.example.com", "127.0.0.1"}))
    assert policy.check("https://hooks.example.com/a") is None
    assert policy.check("https://HOOKS.example.com./a") is None
    assert policy.check("https://other.example.com/a") == "the host is not allowed"
    assert policy.check("https://127.0.0.1/a") is not None


def test_private_addresses_can_be_allowed_but_not_odd_spellings() -> None:
    policy = CallbackPolicy(private_allowed=True)
    assert policy.check("https://127.0.0.1/a") is None
    assert policy.check("https://localhost/a") is None
    assert policy.check("https://[::1]/a") is None
    assert policy.check("https://2130706433/a") == "the host is not an address in its plain form"


@pytest.mark.parametrize("text", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "192.175.48.1"])
def test_addresses_of_the_open_internet(text: str) -> None:
    assert is_public(ip_address(text))


async def test_the_system_is_asked_for_plain_addresses() -> None:
    found = await system_resolver("localhost", 443)
    assert found
    assert all(not is_public(ip_address(text)) for text in found)
