"""Asserts in the contract suite explain themselves as those in a test module do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.registry.contract")
