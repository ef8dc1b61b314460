"""What the settings of a table of DynamoDB mean for locks."""

from __future__ import annotations

import time
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from caslock.cli.finding import danger, note, warning
from caslock.stores.dynamodb.requests import EXPIRES
from caslock.stores.dynamodb.target import target_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from caslock.cli.finding import Finding

_OFF: Final = 60
"""Seconds by which clocks may differ without a warning; DynamoDB refuses requests from about 300 on."""


def examine(url: str) -> Iterator[Finding]:
    """Ask for the settings of the table; raises an error of botocore where they may not be read."""
    target = target_of(url, None, None)
    with closing(target.new_client()) as client:
        described = client.describe_table(TableName=target.table)
        deleting = client.describe_time_to_live(TableName=target.table)["TimeToLiveDescription"]
    yield from judged(described["Table"], deleting)
    server = parsedate_to_datetime(described["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
    if abs(offset := time.time() - server) >= _OFF:
        off = f"this machine's clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} DynamoDB's"
        yield warning(off, "from five minutes on, every request is refused", "Let it follow NTP")


def judged(table: Mapping[str, Any], deleting: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge what DescribeTable and DescribeTimeToLive have returned."""
    if table.get("Replicas") and table.get("MultiRegionConsistency") != "STRONG":
        means = "two regions may each give the same lock, because the last of two writes wins"
        yield danger("it is a global table", means, "Let all processes name one region, or use strong consistency")
    if table["TableStatus"] != "ACTIVE":
        yield warning(
            f"the table is {table['TableStatus'].lower()}", "requests may be refused", "Wait until it is active"
        )
    if deleting.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING") or deleting.get("AttributeName") != EXPIRES:
        means = "an item stays for each key that was ever used"
        yield note("old items are not deleted", means, f'Enable "time to live" for the attribute {EXPIRES}')
    if table.get("BillingModeSummary", {}).get("BillingMode") != "PAY_PER_REQUEST":
        means = "requests beyond it are refused, and renewals are among them"
        yield note("its capacity is provisioned", means, "Bill it by request, or let it scale")
