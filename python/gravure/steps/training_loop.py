"""The loop around a step: gradients, clipping, scaling, the update and the schedule.

One program does forward, backward, scaling, clipping and update, where it can (`_whole`); with
accumulation it is that of the last call of a cycle. Else the gradients are one program's, and the
rest runs behind it as the loop that people write (`_apart`), out of the same parts: a compiled
optimizer, captured clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..options import CompileOptions
from ..torch_api.grad_scaler import scaler_tensors
from ..torch_api.optimizers import note_step
from .clip_programs import ClipPrograms
from .optimizer_step import Ending, OtherBranch, StateMissing, StepUnknown, UpdateApart
from .recorded_step import MOST_TRIES
from .said_once import SaidOnce
from .step_compiler import StepCompiler
from .step_function import step_with

Loop = Callable[..., Any]


class TrainingLoop:
    """What a call of a compiled step does, with an optimizer."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        options: CompileOptions,
        ending: Ending,
        clips: ClipPrograms,
        scheduler: Any,
        scaler: Any,
        accumulate: int,
    ) -> None:
        self.fn, self.name, self.options = fn, name, options
        self.ending, self.clips = ending, clips
        self.optimizer = ending.optimizer
        self.scheduler, self.scaler, self.accumulate = scheduler, scaler, accumulate
        self.compiler = StepCompiler(fn, name, options, ending)
        self._step = step_with(fn, name, self.compiler)
        self._apart_compiler: StepCompiler | None = None
        self._apart_step: Loop | None = None
        self._calls = 0  # since the last update
        self._tries = 0
        self._said = SaidOnce()
        self._unknown: tuple[Any, ...] = ()  # the settings with which the step cannot be recorded
        self._scale_of: Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.ending.scaler = scaler = self._enabled_scaler()
        if self._calls + 1 < self.accumulate or not self._may_be_whole():
            return self._apart(args, kwargs, scaler)
        try:
            result = self._whole(args, kwargs)
        except UpdateApart as apart:
            if apart.args:
                self._say(str(apart))
            return self._apart(args, kwargs, scaler)
        except StateMissing:
            result = self._apart(args, kwargs, scaler)
            if scaler is not None and not self.optimizer.state:
                return result  # the step was skipped
            self._tries += 1
            if self._tries < MOST_TRIES and self.accumulate == 1:
                self._apart_step = self._apart_compiler = None  # its memory goes with it
            return result
        except StepUnknown as error:
            self._refuse(error.reason)
            return self._apart(args, kwargs, scaler)
        except RuntimeError:  # before anything has run
            if self.accumulate > 1 or not self._has_gradients():
                raise
            return self._apart(args, kwargs, scaler)
        self._tries = self._calls = 0
        note_step(self.optimizer)
        self._end()
        return result

    def update(self) -> None:
        """Ends a cycle of accumulation early, as at an epoch's end; nothing where none began."""
        if self._calls:
            self._update(self._enabled_scaler())

    def grad_norm(self) -> Tensor | None:
        """That of the last update's gradients, before they were clipped by norm."""
        return self.ending.norm

    def compilers(self) -> list[StepCompiler]:
        found = [self.compiler, self._apart_compiler]
        return [compiler for compiler in found if compiler is not None]

    # ---- one program

    def _may_be_whole(self) -> bool:
        if self._tries >= MOST_TRIES:
            self._say("its step changes its state in each step")
            return False
        scaler = self.ending.scaler
        if scaler is not None and scaler_tensors(scaler) is None:
            scaler.scale(self._one())  # makes its tensors, the first time
            if scaler_tensors(scaler) is None:
                return False  # somebody has begun a step
        reason = self.ending.read()
        if reason is not None:
            self._say(reason)
        return reason is None and self.ending.key() not in self._unknown

    def _whole(self, args: Any, kwargs: Any) -> Any:
        compiler, ending = self.compiler, self.ending
        scaler = ending.scaler
        scale = None if scaler is None else next(iter(scaler_tensors(scaler) or ()))
        for choice in ending.choices():
            compiler.choice = choice
            try:
                result = self._step(scale, *args, **kwargs)
            except OtherBranch:
                continue
            ending.chosen(choice)
            return result
        compiler.choice = choice = ending.add_choice()
        result = self._step(scale, *args, **kwargs)
        ending.chosen(choice)
        return result

    def _refuse(self, reason: str) -> None:
        self._unknown += (self.ending.key(),)
        self._say(reason)

    # ---- captured parts

    def _apart(self, args: Any, kwargs: Any, scaler: Any) -> Any:
        if self._apart_step is None:
            options = self.options
            if self.accumulate > 1:
                options = replace(options, results="accumulate")
            self._apart_compiler = StepCompiler(self.fn, self.name, options)
            self._apart_step = step_with(self.fn, self.name, self._apart_compiler)
        scale = None if scaler is None else scaler.scale(self._one())
        result = self._apart_step(scale, *args, **kwargs)
        self._calls += 1
        if self._calls >= self.accumulate:
            self._update(scaler)
        return result

    def _update(self, scaler: Any) -> None:
        """As people write it."""
        optimizer = self.optimizer
        self._calls = 0
        if self.ending.clipping is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.ending.clip(parameters, self.clips)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        self._end()

    def _end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def _enabled_scaler(self) -> Any:
        enabled = self.scaler is not None and self.scaler.is_enabled()
        return self.scaler if enabled else None

    def _one(self) -> Tensor:
        """What a scaler's factor is asked with."""
        if self._scale_of is None:
            device = next(p.device for g in self.optimizer.param_groups for p in g["params"])
            self._scale_of = torch.ones((), device=device)
        return self._scale_of

    def _has_gradients(self) -> bool:
        groups = self.optimizer.param_groups
        return any(p.grad is not None for group in groups for p in group["params"])

    def _say(self, reason: str) -> None:
        message = "%s: %s.step() runs behind the step's program, not in it: %s"
        self._said(reason, message, self.name, type(self.optimizer).__name__)
