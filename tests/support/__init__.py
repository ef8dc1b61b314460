"""What the tests share: servers, stores and clocks for tests."""
