"""Every name of PyTorch's own that Python code of ours uses: where it is, and what goes without it.

A module of this room imports such a name from here:

    from .private_names import TensorVariable

Where the torch that runs has not got it, or not the members that are used, the import gives a
stand-in, whose every use is a `MissingName`: an ExportError, which says what is missing. So
`import gravure` never depends on a private name, and what needs it degrades alone: `Without` says
how. What a name is for is told where it is used.

Run as a script this file says what is missing in the torch of the interpreter:

    python python/gravure/torch_api/private_names.py
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import logging
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch

if __name__ == "__main__":  # without the package, which may not import

    class ExportError(RuntimeError):
        pass

else:
    from ..errors import ExportError

logger = logging.getLogger("gravure")

MINOR = int(torch.__version__.split(".")[1])  # of torch 2


class Without(enum.Enum):
    """What becomes of those who need a name where it is missing."""

    COMPILED = "nothing is compiled: functions run as they are, and compile_step is refused"
    SKIPS = "where another one is missing, a compiled function ends in its error"
    BITS = "nothing is compiled, since graphs would have other bits than eager's"
    LAYOUTS = "a graph fails where a result lies otherwise in memory than PyTorch's stand-in says"
    CUTS = "a graph that Dynamo would cut, since AOTAutograd cannot trace it, runs as it is"
    TRUTH = "code that asks is told that it is compiled"
    ANEW = "with Inductor's kernels graphs break where eager's way branches on data"
    RECURRENT = "graphs break at every LSTM, GRU and RNN"
    DROPOUT = "behind a compilation cuDNN's dropout begins anew, with other bits than eager's"
    LOGS = "graphs break where a logger is called"
    BRANCHES = "graphs break at branches on constants"
    GUARDS = "changes of classes, functions and hooks behind the first call are not seen"
    FUNCTIONAL = "a graph with an operator of the user's own that writes runs as it is"
    INDUCTOR = 'codegen="inductor" is refused'
    FUSED = '"fused_random" is refused'
    PROCESSES = "Inductor's processes start with the first kernel, and first calls take longer"
    LOOKS = "what a step takes is looked up in each call"
    WRAPPER = "calls of a step take longer"
    BUNDLES = "saved values pass autograd one by one"
    HOLES = "PyTorch's cache keeps more memory behind a first step under autocast"
    KEPT_GRAPHS = "backwards run uncaptured, as if their graphs were kept"
    LOCK = "two threads that compile at once wait for each other here alone"
    OPTIMIZERS = "an optimizer's step is refused, and runs behind the program"
    SHARDED = "an optimizer of DTensors runs its own step"
    OUTPUT = "nobody is told of what a step's program leaves out"
    SETTINGS = "compile_step is refused"
    EXPLANATIONS = "explain() is refused"
    WORDS = "an error has PyTorch's words alone"
    ARTIFACTS = "tlparse finds nothing of Gravure's"
    SHARED_MEMORY = "products that communicate by symmetric memory run between partitions"
    TORCHTITAN = "torchtitan's graphs are called through AOTAutograd"
    FAKES = "grouped_mm of floats, or cuDNN's batch norm, may be refused"
    FRAMES = "functions without a graph are not named in reports"
    TRACING = "nothing is shown while Dynamo traces"
    NAME = 'the name "gravure" is known where the wheel is installed'


@dataclass(frozen=True)
class Private:
    """One name. `members` are those of it that are used: `name`, or `name<14`, `name>=14` for one
    that only releases before torch 2.14, or from it on, have.

    `sets`: members that its `__init__` makes, which are looked for in its source, by tests alone.
    `as_`: what it is imported as. `met`: nobody imports it, but is handed values of it. `since` and
    `until` are minors of torch 2: it is expected from the first on, and before the second.
    """

    owner: str
    name: str
    without: Without
    members: str = ""
    sets: str = ""
    as_: str = ""
    met: bool = False
    since: int = 0
    until: int = 1000

    @property
    def known_as(self) -> str:
        return self.as_ or self.name

    @property
    def is_expected(self) -> bool:
        return self.since <= MINOR < self.until

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


class MissingName(ExportError):
    """A private name that this torch has not got."""

    def __init__(self, name: Private, problem: str) -> None:
        reason = f"torch {torch.__version__} {problem}"
        remedy = "install a torch that gravure supports"
        super().__init__(str(name), f"{reason}: {name}", remedy)
        self.args = (f"{name}: {reason}, so that {name.without.value}; {remedy}",)


_C, _AOT, _VARIABLES = "torch._C", "torch._functorch._aot_autograd", "torch._dynamo.variables"
_DESCRIPTORS, _SCHEMAS = f"{_AOT}.descriptors", f"{_AOT}.schemas"
_SHAPES = "torch.fx.experimental.symbolic_shapes"

_ROWS = (
    # AOTAutograd.
    Private("torch._dynamo.backends.common", "aot_autograd", Without.COMPILED),
    Private("torch._functorch.aot_autograd", "aot_module_simplified", Without.COMPILED),
    Private("torch._functorch.partitioners", "default_partition", Without.COMPILED),
    Private(
        "torch._functorch",
        "config",
        Without.COMPILED,
        "patch force_non_lazy_backward_lowering enable_autograd_cache donated_buffer "
        "graphsafe_rng_functionalization backward_pass_autocast view_replay_for_aliased_outputs "
        "guess_tangent_strides_as_outputs",
        as_="functorch_config",
    ),
    Private(
        "torch._inductor",
        "config",
        Without.COMPILED,
        "patch fallback_random test_configs.graphsafe_rng_func_ignores_fallback_random",
        as_="inductor_config",
    ),
    Private("torch._dynamo.source", "ConstantSource", Without.COMPILED),
    Private(
        "torch._guards",
        "TracingContext",
        Without.COMPILED,
        "try_get",
        "tensor_to_context fw_metadata fake_mode",
    ),
    Private("torch._guards", "tracing", Without.COMPILED),
    Private(_SHAPES, "DimDynamic", Without.COMPILED, "STATIC"),
    Private(_SHAPES, "ShapeEnv", Without.COMPILED, sets="fake_tensor_cache"),
    Private(_SHAPES, "StatefulSymbolicContext", Without.COMPILED),
    Private(_DESCRIPTORS, "PlainAOTOutput", Without.COMPILED, "idx"),
    Private(_DESCRIPTORS, "PlainAOTInput", Without.COMPILED, "idx", met=True),
    Private(_DESCRIPTORS, "ParamAOTInput", Without.COMPILED, "target", met=True),
    Private(_DESCRIPTORS, "BufferAOTInput", Without.COMPILED, "target", met=True),
    Private(_DESCRIPTORS, "TangentAOTInput", Without.COMPILED, "output", met=True),
    Private(_DESCRIPTORS, "IntermediateBaseAOTOutput", Without.COMPILED, "base_of", met=True),
    Private(_DESCRIPTORS, "SavedForBackwardsAOTOutput", Without.COMPILED, met=True),
    Private(_SCHEMAS, "OutputType", Without.COMPILED, "alias_of_input is_input non_alias"),
    Private(_SCHEMAS, "PlainTensorMeta", Without.COMPILED, "memory_format unwrapped_idx"),
    Private(
        _SCHEMAS,
        "ViewAndMutationMeta",
        Without.COMPILED,
        "input_info output_info num_intermediate_bases subclass_inp_meta deterministic "
        "subclass_fw_graph_out_meta subclass_tangent_meta num_backward_tokens "
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw num_graphsafe_rng_states "
        "bw_donated_idxs grad_enabled_mutation tokens",
        "is_rng_op_functionalized mutated_inp_runtime_indices num_mutated_inp_runtime_indices "
        "num_outputs_aliased num_tensors_saved_with_no_vc_check num_opaque_objects_saved_for_bw "
        "dynamic_outputs",
        met=True,
    ),
    Private(
        _SCHEMAS,
        "InputAliasInfo",
        Without.COMPILED,
        "requires_grad mutates_data mutates_metadata mutates_storage_metadata",
        met=True,
    ),
    Private(
        _SCHEMAS,
        "OutputAliasInfo",
        Without.COMPILED,
        "output_type base_idx requires_grad",
        met=True,
    ),
    Private(_SCHEMAS, "MemoryFormatMeta", Without.COMPILED, "memory_format", met=True),
    Private("torch._logging", "trace_structured", Without.ARTIFACTS),
    # Stand-ins of tensors.
    Private("torch._subclasses.fake_tensor", "FakeTensor", Without.COMPILED, "constant fake_mode"),
    Private("torch._subclasses.fake_tensor", "FakeTensorMode", Without.COMPILED),
    Private("torch._subclasses.fake_tensor", "unset_fake_temporarily", Without.COMPILED),
    Private("torch._subclasses.fake_tensor", "DataDependentOutputException", Without.WORDS),
    Private("torch._dynamo.utils", "detect_fake_mode", Without.COMPILED),
    Private("torch.fx.experimental.proxy_tensor", "is_sym_node", Without.COMPILED),
    # The dispatcher.
    Private(
        "torch._ops",
        "OpOverload",
        Without.COMPILED,
        "",
        "py_kernels _schema _opname _dispatch_cache _op_dk",
    ),
    Private("torch._ops", "OpOverloadPacket", Without.COMPILED, "overloads"),
    Private("torch._ops", "HigherOrderOperator", Without.COMPILED, sets="_name"),
    Private("torch", "_prims", Without.COMPILED),
    Private("torch.utils", "_pytree", Without.COMPILED, "tree_flatten tree_leaves", as_="pytree"),
    Private("torch.utils._python_dispatch", "_disable_current_modes", Without.COMPILED),
    Private("torch.utils._python_dispatch", "is_traceable_wrapper_subclass", Without.COMPILED),
    Private(_C, "_ForceDispatchKeyGuard", Without.COMPILED),
    Private(_C, "_dispatch_tls_local_include_set", Without.COMPILED),
    Private(_C, "_dispatch_tls_local_exclude_set", Without.COMPILED),
    Private(_C, "_AutoDispatchBelowAutograd", Without.COMPILED),
    Private(_C, "_is_any_autocast_enabled", Without.COMPILED),
    Private(_C, "_DisableAutocast", Without.COMPILED),
    Private("torch.amp.autocast_mode", "_enter_autocast", Without.BITS, as_="enter_autocast"),
    Private("torch.amp.autocast_mode", "_exit_autocast", Without.BITS, as_="exit_autocast"),
    Private(_C, "_set_grad_enabled", Without.BITS, as_="set_grad_enabled"),
    # Autograd.
    Private(_C, "_current_graph_task_id", Without.BITS),
    Private("torch.autograd", "Variable", Without.HOLES, "_execution_engine.queue_callback"),
    Private(f"{_C}._autograd", "_get_current_graph_task_keep_graph", Without.KEPT_GRAPHS),
    Private(f"{_C}._autograd", "_top_saved_tensors_default_hooks", Without.BUNDLES),
    # Dynamo.
    Private("torch", "_dynamo", Without.COMPILED, "optimize config.patch config.recompile_limit"),
    Private(
        "torch._dynamo",
        "utils",
        Without.COMPILED,
        "counters _get_dynamo_config_for_logging",
        as_="dynamo_utils",
    ),
    Private("torch._dynamo.utils", "get_compilation_metrics", Without.FRAMES),
    Private(
        "torch._dynamo.callback",
        "callback_handler",
        Without.TRACING,
        "start_callbacks register_start_callback register_end_callback",
    ),
    Private("torch._dynamo.exc", "BackendCompilerFailed", Without.WORDS),
    Private("torch._dynamo.exc", "FailOnRecompileLimitHit", Without.WORDS),
    Private("torch._dynamo.exc", "TorchDynamoException", Without.WORDS),
    Private("torch._dynamo.exc", "exceptions_allowed_to_be_fallback", Without.CUTS),
    Private("torch._dynamo.exc", "SkipFrame", Without.SKIPS),
    Private("torch._dynamo.exc", "UnspecializeRestartAnalysis", Without.ANEW),
    Private(_SHAPES, "GuardOnDataDependentSymNode", Without.WORDS),
    Private("torch._guards", "CompileContext", Without.COMPILED, "current_compile_id"),
    Private("torch._dynamo.convert_frame", "compile_lock", Without.LOCK),
    Private("torch._dynamo.convert_frame", "trace_frame", Without.DROPOUT),
    Private("torch._dynamo.backends", "registry", Without.NAME, "_BACKENDS"),
    Private("torch._dynamo.eval_frame", "make_set_enable_dynamic", Without.SETTINGS),
    Private("torch._dynamo.eval_frame", "skip_code", Without.OPTIMIZERS),
    # From 2.12 on each thread has its own: tests/python/test_threads_that_compile.py.
    Private(f"{_C}._dynamo.eval_frame", "_EvalFrameOverride", Without.SETTINGS, "NONE", until=12),
    Private(f"{_C}._dynamo.eval_frame", "set_eval_frame_override", Without.SETTINGS, until=12),
    Private(f"{_VARIABLES}.misc", "IgnoredFunctionVariable", Without.OUTPUT, "call_function"),
    Private(f"{_VARIABLES}.misc", "LoggingLoggerVariable", Without.OUTPUT, "call_method"),
    Private(f"{_VARIABLES}.misc", "DebuggingVariable", Without.LOGS, "reconstruct"),
    # What Dynamo traces otherwise than eager runs. It looks methods of tensors up by their names up
    # to 2.13, and from 2.14 in a table: tests/python/test_eager_tracing.py.
    Private(
        f"{_VARIABLES}.tensor",
        "TensorVariable",
        Without.BITS,
        "unpack_var_sequence call_method as_proxy method_add_<14 method_addcmul_<14 "
        "method_addcdiv_<14 tp_methods>=14 method_attr_requires_grad",
        "valid_size",
    ),
    Private(f"{_VARIABLES}.builder", "VariableBuilder", Without.RECURRENT, "_wrap"),
    Private(
        f"{_VARIABLES}.torch",
        "TorchInGraphFunctionVariable",
        Without.BITS,
        "_get_handlers call_function",
    ),
    Private(
        f"{_VARIABLES}.optimizer",
        "OptimizerVariable",
        Without.BITS,
        "_set_capturable move_step_if_cpu",
    ),
    Private(f"{_VARIABLES}.misc", "NumpyVariable", Without.BITS, "call_function"),
    Private(f"{_VARIABLES}.misc", "RandomVariable", Without.BITS, "call_method"),
    Private(f"{_VARIABLES}.user_defined", "RandomCallOnSource", Without.BITS, met=True, since=15),
    Private("torch._dynamo.exc", "unimplemented", Without.BITS),
    Private("torch._dynamo.symbolic_convert", "tls", Without.BITS),
    Private("torch", "_foreach_lerp_", Without.BITS),
    Private("torch", "_decomp", Without.BITS),
    Private("torch._subclasses.fake_impls", "op_implementations_dict", Without.BITS),
    Private("torch._decomp", "decomposition_table", Without.LAYOUTS),
    Private("torch._decomp", "meta_table", Without.LAYOUTS),
    Private("torch._prims_common", "compute_elementwise_output_strides", Without.LAYOUTS),
    Private(
        "torch._subclasses.fake_tensor",
        "FakeTensorMode",
        Without.LAYOUTS,
        "cache_clear",
        as_="FakeResults",
    ),
    Private("torch._meta_registrations", "_create_grouped_mm_output_tensor", Without.FAKES),
    Private(_C, "_get_cudnn_batch_norm_reserve_space_size", Without.FAKES),
    Private(_C, "DispatchKey", Without.BITS, "Autograd CompositeImplicitAutograd"),
    Private(_SHAPES, "guard_or_false", Without.BITS),
    Private("torch", "compiler", Without.BITS, "_is_compiling_flag"),
    Private(f"{_VARIABLES}.constant", "ConstantVariable", Without.TRUTH, "create"),
    Private(f"{_VARIABLES}.functions", "SkipFunctionVariable", Without.TRUTH, "call_function"),
    Private(
        "torch._dynamo.symbolic_convert",
        "InstructionTranslatorBase",
        Without.BRANCHES,
        "dispatch_table",
        "f_code output parent stack",
    ),
    Private(f"{_C}._functorch", "peek_interpreter_stack", Without.BRANCHES),
    Private(_C, "DisableTorchFunction", Without.BRANCHES),
    Private("torch.utils._python_dispatch", "TorchDispatchMode", Without.BRANCHES),
    # What Dynamo does not look for after the first call. Attributes of a class are read by another
    # method from 2.14 on.
    Private(f"{_VARIABLES}.base", "VariableTracker", Without.GUARDS, "build", "source"),
    Private(
        f"{_VARIABLES}.user_defined",
        "UserDefinedClassVariable",
        Without.GUARDS,
        "var_getattr<14 tp_getattro_impl>=14",
    ),
    Private(
        f"{_VARIABLES}.user_defined",
        "UserDefinedObjectVariable",
        Without.GUARDS,
        "get_source_by_walking_mro",
    ),
    Private(
        f"{_VARIABLES}.misc",
        "SuperVariable",
        Without.GUARDS,
        "_resolved_getattr_and_source",
        "objvar typevar",
    ),
    Private(f"{_VARIABLES}.functions", "UserFunctionVariable", Without.GUARDS, "bind_args", "fn"),
    Private(
        f"{_VARIABLES}.nn_module",
        "UnspecializedNNModuleVariable",
        Without.GUARDS,
        "call_function",
    ),
    Private("torch._dynamo.guards", "install_guard", Without.GUARDS),
    Private("torch._dynamo.source", "AttrSource", Without.GUARDS),
    Private("torch._dynamo.source", "DefaultsSource", Without.GUARDS),
    Private("torch._dynamo.source", "DictGetItemSource", Without.GUARDS),
    Private("torch._dynamo.source", "GlobalWeakRefSource", Without.GUARDS),
    Private("torch._dynamo.source", "TypeDictSource", Without.GUARDS),
    # Guards and caches of Dynamo's.
    Private(
        "torch._dynamo.guards",
        "GuardBuilder",
        Without.LOOKS,
        "get_guard_manager_from_source ID_MATCH CONSTANT_MATCH CLOSURE_MATCH DICT_CONTAINS "
        "SEQUENCE_LENGTH EMPTY_NN_MODULE_HOOKS_DICT TYPE_MATCH get",
    ),
    Private("torch._dynamo.guards", "GuardManagerType", Without.LOOKS, "GUARD_MANAGER"),
    Private(
        "torch._dynamo.guards",
        "GuardManagerWrapper",
        Without.LOOKS,
        "find_tag_safe_roots finalize",
        "root",
    ),
    Private("torch._dynamo.guards", "_get_closure_vars", Without.LOOKS),
    # Calls of what was compiled without torch.compile's own part.
    Private(
        "torch._dynamo",
        "eval_frame",
        Without.WRAPPER,
        "_stance.skip_guard_eval_unsafe _stance.stance _stance.backend",
        as_="dynamo_eval_frame",
    ),
    Private(f"{_C}._dynamo.eval_frame", "get_eval_frame_callback", Without.WRAPPER),
    Private("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", Without.WRAPPER),
    Private("torch._dynamo.source", "GlobalSource", Without.LOOKS),
    Private("torch._dynamo.source", "LocalSource", Without.LOOKS, "local_name"),
    Private("torch._dynamo", "pgo", Without.EXPLANATIONS, "_CODE_STATE CodeState"),
    Private("torch._dynamo", "convert_frame", Without.EXPLANATIONS, "input_codes.seen"),
    Private(
        f"{_C}._dynamo",
        "eval_frame",
        Without.EXPLANATIONS,
        "_debug_get_cache_entry_list reset_code",
    ),
    Private("torch._dynamo.guards", "DeletedGuardManagerWrapper", Without.EXPLANATIONS),
    Private(f"{_C}._autograd", "_unsafe_set_version_counter", Without.EXPLANATIONS),
    # Inductor.
    Private("torch", "_inductor", Without.INDUCTOR, "list_mode_options"),
    Private("torch._inductor.compile_fx", "_recursive_joint_graph_passes", Without.INDUCTOR),
    Private("torch._inductor.compile_fx", "compile_fx_inner", Without.INDUCTOR),
    Private("torch._inductor.compile_fx", "partition_fn", Without.INDUCTOR),
    Private("torch._inductor.decomposition", "select_decomp_table", Without.INDUCTOR),
    Private("torch._inductor.async_compile", "maybe_warm_pool", Without.PROCESSES),
    Private("torch._inductor", "inductor_prims", Without.FUSED, "seeds"),
    Private("torch._inductor.virtualized", "V", Without.INDUCTOR, "set_fake_mode"),
    Private("torch._dynamo.utils", "preserve_rng_state", Without.INDUCTOR),
    Private("torch._inductor.constant_folding", "replace_node_with_constant", Without.COMPILED),
    Private(
        "torch._inductor.fx_passes.post_grad", "decompose_auto_functionalized", Without.FUNCTIONAL
    ),
    # Optimizers.
    Private("torch.amp.grad_scaler", "_refresh_per_optimizer_state", Without.OPTIMIZERS),
    Private("torch.optim.optimizer", "_default_to_fused_or_foreach", Without.OPTIMIZERS),
    Private("torch.optim.optimizer", "_global_optimizer_post_hooks", Without.OPTIMIZERS),
    Private("torch.optim.optimizer", "_global_optimizer_pre_hooks", Without.OPTIMIZERS),
    Private(_C, "_VariableFunctions", Without.OPTIMIZERS),  # for classes that are not torch.optim's
    # DTensors.
    Private("torch.distributed.tensor", "DTensor", Without.SHARDED, "_local_tensor _spec"),
    Private(
        "torch.distributed._functional_collectives",
        "AsyncCollectiveTensor",
        Without.SHARDED,
        "wait",
    ),
    Private(
        "torch.distributed.tensor._sharding_prop",
        "ShardingPropagator",
        Without.SHARDED,
        "_propagate_tensor_meta_non_cached",
    ),
    # torchtitan 0.2.x alone, which runs with torch 2.11 and 2.12.
    Private(
        f"{_AOT}.runtime_wrappers", "_backward_prologue_functional", Without.TORCHTITAN, until=13
    ),
    Private(
        f"{_AOT}.runtime_wrappers", "_backward_epilogue_functional", Without.TORCHTITAN, until=13
    ),
    Private(
        _SCHEMAS,
        "SubclassCreationMeta",
        Without.TORCHTITAN,
        "creation_fn flat_tensor_start_idx meta original_subclass_type attrs outer_size "
        "outer_stride",
    ),
    Private(
        "torch.distributed._symmetric_memory",
        "_group_name_to_workspace_tensor",
        Without.SHARED_MEMORY,
        "__setitem__",
        met=True,
    ),
    Private("torch._dynamo", "compiled_autograd", Without.TORCHTITAN, "compiled_autograd_enabled"),
)

NAMES = {row.known_as: row for row in _ROWS}
assert len(NAMES) == len(_ROWS)


def __getattr__(name: str) -> Any:
    """What `from .private_names import name` gives."""
    row = NAMES.get(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    problem = missing(row)
    return _stand_in(row, problem) if problem else _value(row)


def _value(row: Private) -> Any:
    owner = _owner(row.owner)
    if not hasattr(owner, row.name):  # a module that nobody has imported yet
        importlib.import_module(str(row))
    return getattr(owner, row.name)


def _owner(owner: str) -> Any:
    try:
        return importlib.import_module(owner)
    except ModuleNotFoundError:  # a module of the C++ library's is an attribute
        above, _, name = owner.rpartition(".")
        if not above:
            raise
        return getattr(_owner(above), name)


def missing(row: Private) -> str:
    """What this torch lacks of it; "" where all is there."""
    try:
        value = _value(row)
    except (ImportError, AttributeError):
        return "does not have it"
    for member in row.members.split():
        name, sign, minor = re.fullmatch(r"([\w.]+?)(?:(<|>=)(\d+))?", member).groups()
        if sign and (MINOR < int(minor)) is not (sign == "<"):
            continue
        if not _has(value, name):
            return f"has it without {name}"
    return ""


def _has(value: Any, name: str) -> bool:
    """Whether it has this member, also one that only its instances have, or a member's member."""
    if hasattr(value, name) or name in getattr(value, "__dataclass_fields__", ()):
        return True
    if any(name in vars(base).get("__annotations__", ()) for base in getattr(value, "__mro__", ())):
        return True
    first, dot, rest = name.partition(".")
    return bool(dot) and hasattr(value, first) and _has(getattr(value, first), rest)


def missing_in_source(row: Private) -> str:
    """The first of its members by `sets` that its source does not name; "" if none."""
    if not row.sets or not row.is_expected:
        return ""
    value = _value(row)
    source = "\n".join(inspect.getsource(base) for base in value.__mro__[:-1] if _is_pytorchs(base))
    for name in row.sets.split():
        if not re.search(rf"\bself\.{name}\b|\bdef {name}\(|^    {name}:", source, re.MULTILINE):
            return name
    return ""


def _is_pytorchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _stand_in(row: Private, problem: str) -> Any:
    if row.without is Without.WORDS:  # an error that nobody raises
        return type(row.name, (Exception,), {})

    def use(*_: Any, **__: Any) -> Any:
        raise MissingName(row, problem)

    def look(_: Any, member: str) -> Any:
        if member.startswith("__"):  # which Python itself asks for
            raise AttributeError(member)
        raise MissingName(row, problem)

    uses = ("__call__", "__instancecheck__", "__subclasscheck__", "__enter__", "__exit__")
    uses += ("__iter__", "__getitem__", "__setitem__", "__contains__", "__len__")
    kind = type("Missing", (type,), {"__getattr__": look, **dict.fromkeys(uses, use)})
    return kind(row.name, (), {"__init__": use})


@functools.cache
def first_missing() -> MissingName | None:
    """The first name that is missing of those that no graph can do without; None if none is."""
    for row in NAMES.values():
        if row.without in (Without.COMPILED, Without.BITS) and row.is_expected and not row.met:
            problem = missing(row)
            if problem:
                return MissingName(row, problem)
    return None


def is_there(name: str) -> bool:
    """Whether this torch has what `name` stands for here, with all members that are used."""
    return not missing(NAMES[name])


def warn_of(error: MissingName) -> None:
    """Warns of it, once in a process, for who goes on without it."""
    _warn(str(error))


@functools.cache
def _warn(problem: str) -> None:
    logger.warning("%s", problem)


def main() -> int:
    """Prints what is missing; its exit status says whether anything is."""
    found = 0
    for row in NAMES.values():
        problem = missing(row) if row.is_expected else ""
        if not problem and (member := missing_in_source(row)):
            problem = f"has it without {member}"
        if problem:
            found += 1
            print(f"torch {torch.__version__} {problem}: {row}; without it {row.without.value}")
    print(f"torch {torch.__version__}: {len(NAMES)} private names, {found} missing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
