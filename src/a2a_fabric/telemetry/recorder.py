"""Decides which calls are recorded, and hands ended recordings to the history."""

from __future__ import annotations

from a2a_fabric.core.call import Call
from a2a_fabric.core.job import SPAN_META, JobSummary
from a2a_fabric.core.recording import CallRecording
from a2a_fabric.core.result import Result
from a2a_fabric.telemetry.history import CallHistory
from a2a_fabric.telemetry.spans import build_job_record


class SpanRecorder:
    def __init__(self, history: CallHistory, node: str) -> None:
        self._history = history
        self._node = node

    def begin(self, call: Call) -> CallRecording | None:
        recording = CallRecording(call)
        self._history.note_input(recording, call)
        return recording

    def end(self, recording: CallRecording, result: Result | None) -> None:
        if result is not None:
            self._history.note_output(recording, result)
        self._history.add(recording)

    def record_job(self, job: JobSummary) -> None:
        """A job that has ended. Jobs of older versions do not say what their span is."""
        span = job.meta.get(SPAN_META)
        if isinstance(span, dict) and job.has_ended:
            record = build_job_record(job, str(span.get("span_id", "")), span.get("parent_span_id"), self._node)
            self._history.add_record(str(job.meta.get("trace_id", "")), record)
