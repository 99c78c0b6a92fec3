"""What an emulator has: topics, subscriptions and their rules. May be read from a JSON file.

Unless it is strict, what is asked for and is not there is made. A subscription made that way is for one
addressee: it takes what has its name in the application property `service`, and what has no such property.
A message with such a property makes the subscription that it is for, so that it waits for its receiver. On
Azure both are set up beforehand, each with a filter of its own.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from lucius.core.routing import LANES, reply_topic, topic
from lucius_lab.emulators.service_bus.messages import Message

ADDRESSEE: Final = "service"


class SubscriptionRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lock_ms: int = 30_000
    deliveries_max: int = 10
    messages_max: int = 10_000
    sessions: bool = False
    """Whether every message belongs to a session, which one receiver holds at a time."""
    filter: dict[str, str] = {}
    """Application properties that a message must have; empty: every message is taken."""
    or_without: bool = False
    """Takes a message that has none of the filter's properties, too."""

    def takes(self, message: Message) -> bool:
        if self.or_without and not any(name in message.application for name in self.filter):
            return True
        return all(message.application.get(name) == value for name, value in self.filter.items())


class TopicRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    duplicates_ms: int = 600_000
    """How long the id of a message is remembered; 0: not at all."""
    subscriptions: dict[str, SubscriptionRules] = {}


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    strict: bool = False
    """Whether there is only what is named here."""
    topics: dict[str, TopicRules] = {}
    new_topic: TopicRules = TopicRules()
    new_subscription: SubscriptionRules = SubscriptionRules()
    largest_message_bytes: int = 262_144

    def made_for(self, name: str) -> SubscriptionRules:
        return msgspec.structs.replace(self.new_subscription, filter={ADDRESSEE: name}, or_without=True)


def lucius_topology(
    *, reply_groups: Sequence[str], subscription: SubscriptionRules, topic_rules: TopicRules, **more: Any
) -> Topology:
    """The 32 topics, with a subscription of each group to the replies. Those of services are made as they
    come."""
    replies = dict.fromkeys(reply_groups, subscription)
    with_replies = msgspec.structs.replace(topic_rules, subscriptions=replies)
    return Topology(
        topics={topic(lane): topic_rules for lane in range(LANES)}
        | {reply_topic(lane): with_replies for lane in range(LANES)},
        new_topic=topic_rules,
        new_subscription=subscription,
        **more,
    )
