"""torchtitan's `cudagraph` pass as programs: importing this registers it (docs/torchtitan.md).

`--job.custom_config_module=gravure.torchtitan` or `--experimental.custom_import=gravure.torchtitan`
with torchtitan 0.2.1 and 0.2.2; `--module gravure.torchtitan` from 0.3 on, or the pass pipeline
`cudagraph`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import pkgutil
import sys
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import fx

from .calls.graph_passes import GraphPasses
from .graphs.marked_regions import RegionEffects, warn_of_regions
from .graphs.saved_bundle import bundling
from .kernel_names import annotate_trace, kernel_annotations
from .torch_api.aot_autograd import default_partition
from .torch_api.autograd import saved_tensor_hooks_are_set
from .torch_api.toolkit_call import ModuleTensors, ToolkitCall, may_call_toolkit

logger = logging.getLogger("gravure")

_TOOLKIT = "torchtitan.experiments.compiler_toolkit"  # 0.2.x
_GRAPH_TRAINER = "torchtitan.experiments.graph_trainer"  # from 0.3 on
_OWN_PASS = ("cudagraph_pass", "cuda_graph_pass")  # torchtitan's, by release
# Marks kernels for torchtitan's own capture. A program cannot hold its Python calls, and knows
# whose kernels it runs.
_ANNOTATIONS = "insert_kernel_annotations_pass"
_ANNOTATE = "_cudagraph_annotate_trace_file"  # given each trace that torchtitan's profiler writes
# They have Inductor compile regions, the second the whole graph as one.
_REGIONS, _WHOLE = "regional_inductor_pass", "full_inductor_compilation_pass"

_passes = GraphPasses()


def configure(**options: Any) -> None:
    """Options of `torch.compile(backend="gravure")` for graphs to come: docs/torch-compile.md."""
    _passes.configure(options)


def teardown() -> None:
    """Gives back every program's graphs and memory, before the process group is destroyed."""
    _passes.shutdown()


def cudagraph_pass(
    gm: Any, example_inputs: Sequence[Any], is_forward: bool = True, **step: Any
) -> Any:
    """torchtitan's pass: what calls `gm` runs programs of it from then on.

    Of 0.2.x, which knows the pass by this function's name, `is_forward` tells the two graphs apart.
    From 0.3 on there is one graph for the step, and `static_input_indices` in `step`.
    """
    if not isinstance(gm, fx.GraphModule):
        logger.warning(
            "the pass before cudagraph returned a %s, not a graph: it runs as it is; "
            "leave out full_inductor_compilation",
            type(gm).__name__,
        )
        return gm
    static_inputs = step.get("static_input_indices")
    if static_inputs is not None:
        _allow_regions(gm, step.get("regions") or RegionEffects())
        return _passes.step(gm, static_inputs)
    return _passes.forward(gm) if is_forward else _passes.backward(gm)


def _allow_regions(gm: fx.GraphModule, regions: RegionEffects) -> None:
    regions.allow(gm)
    warn_of_regions(regions.obstacle)


def _look_at_regions_pass(
    gm: fx.GraphModule, _: Any, *, regions: RegionEffects, whole: bool
) -> fx.GraphModule:
    regions.look_at(gm, whole=whole)
    return gm


def cudagraph_pipeline(traced: Any, config: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """torchtitan's own passes with this `cudagraph_pass` instead of its own.

    Other arguments are torchtitan's business, whatever a release calls them.
    """
    passes_module = importlib.import_module(f"{_GRAPH_TRAINER}.passes")
    before = passes_module.construct_default_graph_passes(traced, config, *args, **kwargs)
    regions = RegionEffects()
    own = functools.partial(
        cudagraph_pass,
        static_input_indices=list(range(traced.num_static_inputs)),
        regions=regions,
    )
    names = [_name(entry) for entry in before]
    if not set(names) & set(_OWN_PASS):
        logger.warning(
            "torchtitan chose no pass named %s (is it in compile.disable_passes?): the step runs "
            "without programs",
            " or ".join(_OWN_PASS),
        )
    passes = [p for p in _looking_at_regions(before, regions) if _name(p) != _ANNOTATIONS]
    return [own if _name(p) in _OWN_PASS else p for p in passes]


def _looking_at_regions(passes: Sequence[Any], regions: RegionEffects) -> list[Any]:
    """These, and a look at each region before it is compiled."""
    found: list[Any] = []
    for entry in passes:
        name = _name(entry)
        if name in (_REGIONS, _WHOLE):
            look = functools.partial(_look_at_regions_pass, regions=regions, whole=name == _WHOLE)
            found.append(look)
        found.append(entry)
    return found


def _sign_regions_pass(gm: fx.GraphModule, _: Any, *, regions: RegionEffects) -> fx.GraphModule:
    """Behind all passes: a graph that goes into a file keeps what its regions were seen to do."""
    if isinstance(gm, fx.GraphModule):
        regions.allow(gm)
    return gm


def _look_at_artifacts(passes: ModuleType) -> None:
    """Artifacts are precompiled with these passes: their regions tell what they were seen to do."""
    choose = getattr(passes, "compile_time_passes", None)
    if choose is None:
        return

    @functools.wraps(choose)
    def choose_and_look(*args: Any, **kwargs: Any) -> list[Any]:
        regions = RegionEffects()
        chosen = _looking_at_regions(choose(*args, **kwargs), regions)
        return [*chosen, functools.partial(_sign_regions_pass, regions=regions)]

    passes.compile_time_passes = choose_and_look


def _name_kernels_in_traces(cudagraph: ModuleType) -> None:
    """Where torchtitan names kernels in a trace of its profiler, programs' get names, too."""
    annotate = getattr(cudagraph, _ANNOTATE, None)
    if annotate is None:
        return

    @functools.wraps(annotate)
    def annotate_all(trace_path: str) -> None:
        annotate(trace_path)
        if known := kernel_annotations():
            named = annotate_trace(trace_path, known)
            logger.info("%d kernels of programs are named in %s", named, trace_path)

    setattr(cudagraph, _ANNOTATE, annotate_all)


def _name(entry: Any) -> str:
    while isinstance(entry, functools.partial):
        entry = entry.func
    return getattr(entry, "__name__", "")


def _close_with_teardown(trainer: Any) -> None:
    """`trainer.close()` comes before the process group is destroyed."""
    close = trainer.close

    def close_all() -> Any:
        try:
            return close()
        finally:
            teardown()

    trainer.close = close_all


def _register_toolkit_pass(passes: ModuleType) -> None:
    passes.AVAILABLE_COMPILER_PASSES["cudagraph"] = cudagraph_pass


def _lighten_calls(graph_utils: ModuleType) -> None:
    """Where this pass is chosen, little is done in a call of the toolkit's graphs but to run them.

    Forwards save one tensor, not hundreds, gradients keep the specs of the step before, and neither
    the toolkit nor AOTAutograd looks at every parameter.
    """
    make_compilers = graph_utils.make_compiler_with_passes
    compile_joint = graph_utils.aot_compile_joint_with_descriptors
    build_joint = graph_utils.joint_graph_builder
    with_programs: weakref.WeakSet[Any] = weakref.WeakSet()
    built: list[ToolkitCall] = []

    @functools.wraps(make_compilers)
    def make_and_note(passes: Any = None, *args: Any, **kwargs: Any) -> Any:
        compilers = make_compilers(passes, *args, **kwargs)
        if passes and passes[-1] is cudagraph_pass:
            with_programs.add(compilers[0])
        return compilers

    @functools.wraps(compile_joint)
    def compile_lightly(joint: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("fw_compiler") not in with_programs:
            return compile_joint(joint, *args, **kwargs)
        if not saved_tensor_hooks_are_set():
            kwargs["partition_fn"] = bundling(kwargs.get("partition_fn", default_partition))
        compiled = compile_joint(joint, *args, **kwargs)
        if not may_call_toolkit():
            return compiled
        built.append(ToolkitCall(joint, compiled, _passes.entries()))
        return built[-1]

    @functools.wraps(build_joint)
    def build_lightly(model: Any, *args: Any, **kwargs: Any) -> Any:
        built.clear()
        run = build_joint(model, *args, **kwargs)
        if not built:
            return run
        call, held = built.pop(), ModuleTensors(model)
        return lambda args, kwargs: call(*held(), *args, **kwargs)

    graph_utils.make_compiler_with_passes = make_and_note
    graph_utils.aot_compile_joint_with_descriptors = compile_lightly
    graph_utils.joint_graph_builder = build_lightly


def _register_pipeline() -> None:
    registry = importlib.import_module(f"{_GRAPH_TRAINER}.registry")
    registry.register_pass_pipeline("cudagraph")(cudagraph_pipeline)
    registry.register_post_init_hook("cudagraph")(_close_with_teardown)
    _when_imported(f"{_GRAPH_TRAINER}.passes", _look_at_artifacts)
    _when_imported(f"{_GRAPH_TRAINER}.cudagraph", _name_kernels_in_traces)


class _OnImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls `then` with one module, right after its first import that succeeds."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then
        self._loader: Any = None
        self._is_looking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        sys.meta_path.remove(self)
        self._then(module)


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _OnImport(name, then))


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _register() -> None:
    found = False
    if _has(f"{_TOOLKIT}.passes"):
        # Not imported here: it takes a CUDA stream and a pool on the current device, and the
        # trainer chooses the device after it has read its configuration.
        _when_imported(f"{_TOOLKIT}.passes", _register_toolkit_pass)
        _when_imported(f"{_TOOLKIT}.graph_utils", _lighten_calls)
        found = True
    if _has(f"{_GRAPH_TRAINER}.registry"):
        _register_pipeline()
        found = True
    if not found:
        raise ImportError(
            "gravure.torchtitan found neither torchtitan's compiler_toolkit (0.2.1, 0.2.2) nor its "
            "graph_trainer (0.3): install torchtitan 0.2.2, or one of these"
        )


def __getattr__(name: str) -> Any:
    """What torchtitan looks up in a module of configurations.

    `JobConfig` is the compiler toolkit's, which has `compile.passes`. From 0.3 on `--module` names
    this module and `--config` one of the graph trainer's own configurations: it is given with this
    pipeline chosen.
    """
    if name == "JobConfig":
        return importlib.import_module(f"{_TOOLKIT}.job_config").JobConfig
    config = None if name.startswith("_") else _graph_trainer_config(name)
    if config is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(_with_pipeline, config)


def _graph_trainer_config(name: str) -> Callable[[], Any] | None:
    spec = importlib.util.find_spec(_GRAPH_TRAINER) if _has(_GRAPH_TRAINER) else None
    for model in pkgutil.iter_modules(spec.submodule_search_locations if spec else None):
        registry = f"{_GRAPH_TRAINER}.{model.name}.config_registry"
        if spec is not None and model.ispkg and _has(registry):
            config = getattr(importlib.import_module(registry), name, None)
            if config is not None:
                return config
    return None


def _with_pipeline(config: Callable[[], Any]) -> Any:
    made = config()
    made.compile.pass_pipeline = "cudagraph"
    return made


_register()
