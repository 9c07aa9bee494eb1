"""One-sided writes and reads between hosts, over RDMA devices. Needs no Ray."""
