"""StepAside: on a contended lock, a thread lets the next holder run first, while that pays."""

from __future__ import annotations

import os

import pytest

from handfast.net import step_aside
from handfast.net.step_aside import CONTENDED, LONGEST_PAUSE, PAUSE, TOO_LONG, StepAside


class Machine:
    """A clock, and a CPU that comes back `away` seconds after it was given to others."""

    def __init__(self, away: float) -> None:
        self.time = 100.0
        self.away = away
        self.given = 0

    def clock(self) -> float:
        return self.time

    def sched_yield(self) -> None:
        self.given += 1
        self.time += self.away


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(away=TOO_LONG / 2)
    monkeypatch.setattr(step_aside, "_clock", machine.clock)
    monkeypatch.setattr(os, "sched_yield", machine.sched_yield, raising=False)
    return machine


def take_turns(aside: StepAside, turns: int) -> None:
    for _ in range(turns):
        aside.waited()
        aside.once()


def test_thread_steps_aside_after_each_reply_on_a_contended_lock(machine: Machine) -> None:
    take_turns(StepAside(), 100)
    assert machine.given == 100


def test_thread_keeps_its_cpu_if_it_never_waited(machine: Machine) -> None:
    StepAside().once()
    assert machine.given == 0


def test_lock_is_not_contended_some_time_after_the_last_wait(machine: Machine) -> None:
    aside = StepAside()
    aside.waited()
    machine.time += CONTENDED * 1.01
    aside.once()
    assert machine.given == 0


def test_process_that_computes_gets_the_cpu_a_few_times_only(machine: Machine) -> None:
    aside, machine.away = StepAside(), 0.003
    began = machine.time
    while machine.time < began + 60:
        take_turns(aside, 1)
        machine.time += 0.001
    # One try in each longest pause, and a few before the pause is that long.
    assert machine.given * machine.away < 0.005 * 60
    assert machine.given > 60 / LONGEST_PAUSE - 10


def test_stepping_aside_is_tried_again_after_a_pause(machine: Machine) -> None:
    aside, machine.away = StepAside(), 0.003
    take_turns(aside, 10)
    given, machine.away = machine.given, TOO_LONG / 2
    machine.time += PAUSE * 1.01
    take_turns(aside, 10)
    assert machine.given == given + 10


def test_one_late_return_does_not_switch_it_off(machine: Machine) -> None:
    aside = StepAside()
    take_turns(aside, 100)
    machine.away = 2 * TOO_LONG
    take_turns(aside, 1)
    machine.away = TOO_LONG / 2
    take_turns(aside, 100)
    assert machine.given == 201


def test_system_without_sched_yield_keeps_the_cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_yield", raising=False)
    take_turns(StepAside(), 10)
    assert machine.given == 0
