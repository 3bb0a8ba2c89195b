"""Networks, how their anchors are matched, trained and read: separate objects."""
