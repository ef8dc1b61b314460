"""Holds threads up at random calls, as a busy machine does: ``python -m pytest -p tests.support.hold_ups``."""

import os
import random
import sys
import threading
from time import sleep
from types import FrameType

_OURS, SHARE = ("/caslock/", "/tests/"), float(os.environ.get("HOLD_UPS", "0.003"))  # the share of calls to hold up
_dice: random.Random | None = random.Random()  # None as the interpreter ends


def _hold_up(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and _dice and _dice.random() < SHARE and any(map(frame.f_code.co_filename.count, _OURS)):
        sleep(_dice.uniform(0.0, 0.03))


sys.setswitchinterval(0.00001)
sys.setprofile(_hold_up)
threading.setprofile(_hold_up)
