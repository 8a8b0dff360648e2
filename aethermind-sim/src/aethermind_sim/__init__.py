"""A simulated accelerator: two devices whose memory the host cannot access and whose streams run late."""
