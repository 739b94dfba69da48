"""OpenTelemetry traces: spans made of a call's record once it has ended, sent by a thread of their own."""
