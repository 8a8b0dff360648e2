"""A simulated accelerator: two devices whose memory the host cannot reach and whose streams run late."""
