"""What may be chosen about topics and subscriptions. The outer limits are those of Service Bus."""

from typing import Final

LOCK_SECONDS: Final = 30
LOCK_SECONDS_MIN: Final = 5
LOCK_SECONDS_MAX: Final = 300
DUPLICATE_WINDOW_SECONDS: Final = 600
DUPLICATE_WINDOW_SECONDS_MIN: Final = 20
DUPLICATE_WINDOW_SECONDS_MAX: Final = 604_800
DELIVERIES_MAX: Final = 10
