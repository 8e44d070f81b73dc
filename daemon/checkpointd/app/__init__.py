"""The composition root: every object is built here, by hand; and here is the order of start and stop.

``rooms``   an opened store and everything that is built on it: what a command works with
``crew``    the four passes over one set of rooms, with the keeper of their leases
``daemon``  the long-running process: schedule, signals, endpoint, and how it winds down
"""

from checkpointd.app.crew import run_pass as run_pass
from checkpointd.app.crew import survey as survey
from checkpointd.app.daemon import Daemon as Daemon
from checkpointd.app.daemon import Ended as Ended
from checkpointd.app.rooms import Rooms as Rooms
from checkpointd.app.rooms import connecting as connecting
from checkpointd.app.rooms import legacy_source as legacy_source
from checkpointd.app.rooms import open_rooms as open_rooms
