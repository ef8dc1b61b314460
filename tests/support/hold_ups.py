"""Holds threads up at random calls, as a busy machine does: ``python -m pytest -p tests.support.hold_ups``."""

import os
import random
import sys
import threading
import time
from types import FrameType

SHARE = float(os.environ.get("HOLD_UPS", "0.003"))  # the share of our calls that take up to 0.03 s longer
_dice, _sleep, _ours = random.Random(), time.sleep, ("/caslock/", "/tests/")


def _hold_up(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and _dice.random() < SHARE and any(part in frame.f_code.co_filename for part in _ours):
        _sleep(_dice.uniform(0.0, 0.03))


sys.setswitchinterval(0.00001)
sys.setprofile(_hold_up)
threading.setprofile(_hold_up)
