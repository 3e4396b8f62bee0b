"""The parts of an exported program that are the same in all: text, for `memsched.torch.export`."""

from __future__ import annotations

HEAD = '''"""A planned training step of PyTorch, as memsched exports it.

It needs torch alone. With the model that it was made of, or another one with the same parameters:

    import step  # the name of this file
    loss = step.step(model, *inputs)  # gradients are in .grad, and buffers are updated

`run` gives the model's results, for a loss of your own. `forward` and `backward` are the step.
"""

import contextlib

import torch

aten = torch.ops.aten
'''

COPIES = '''

class Host:
    """Where a tensor lies while it is not on the device."""

    def __init__(self, value):
        storage = value.untyped_storage()
        self.device = value.device
        self.layout = value.dtype, value.storage_offset(), value.shape, value.stride()
        self.conjugated, self.negated = value.is_conj(), value.is_neg()
        if value.is_cuda:
            self.memory = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True)
        else:
            self.memory = torch.frombuffer(bytearray(storage.nbytes()), dtype=torch.uint8)
        self.moment = None  # when the last copy from here or to here ends

    def copy(self, way, storage):
        """Copy to a storage or from it; on a GPU beside the computation, after what runs now."""
        there = torch.empty(0, dtype=torch.uint8, device=storage.device)
        there.set_(storage, 0, (storage.nbytes(),), (1,))
        target, source = (self.memory, there) if way == "out" else (there, self.memory)
        if self.device.type != "cuda":
            target.copy_(source)
            return
        if (way, self.device) not in STREAMS:
            STREAMS[way, self.device] = torch.cuda.Stream(self.device)
        stream = STREAMS[way, self.device]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        if self.moment is not None:
            stream.wait_event(self.moment)
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            self.moment = stream.record_event()


STREAMS = {}  # of a GPU: one for copies to the host, and one for those from it


def offload(value):
    """Begin to copy a tensor to the host; it must stay until `offloaded`."""
    host = Host(value)
    host.copy("out", value.untyped_storage())
    return host


def prefetch(host):
    """Begin to copy a tensor back; it is there after `arrived`."""
    nbytes = host.memory.numel()
    storage = torch.empty(nbytes, dtype=torch.uint8, device=host.device).untyped_storage()
    host.copy("in", storage)
    dtype, offset, shape, stride = host.layout
    value = torch.empty(0, dtype=dtype, device=host.device).set_(storage, offset, shape, stride)
    value = torch._conj(value) if host.conjugated else value
    return torch._neg_view(value) if host.negated else value


def arrived(host):
    """Let the computation wait until the last copy has ended."""
    if host.moment is not None:
        torch.cuda.current_stream(host.device).wait_event(host.moment)


offloaded = arrived
'''

KEPT = '''

def kept(value):
    """A copy of a buffer that is about to change."""
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)
'''

LAID = '''

def laid(value, stride):
    """A value with these strides: some operations write another order than planned."""
    if same_stride(value, stride) or value.numel() == 0:
        return value
    made = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return made.copy_(value)

'''

RANDOM = '''

def random_state(device):
    """The state of the random numbers of a device."""
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def again(state, device, operation, *args, **kwargs):
    """Run a random operation once more, with the numbers that it drew from this state."""
    change = torch.set_rng_state if device.type == "cpu" else torch.cuda.set_rng_state
    more = () if device.type == "cpu" else (device,)
    now = random_state(device)
    change(state, *more)
    try:
        return operation(*args, **kwargs)
    finally:
        change(now, *more)
'''

RUN = '''

class Program(torch.autograd.Function):
    """The step, for autograd."""

    boxed_grads_call = True  # where PyTorch knows it, gradients are given as a list, to be freed

    @staticmethod
    def forward(ctx, buffers, *given):
        params = dict(zip(PARAMS, given))
        with planned():
            outputs, saved = forward(params, buffers, *given[len(PARAMS) :])
        # A result that is a view would count as one of memory that nobody has.
        outputs = [aten._unsafe_view(one, one.shape) if one._is_view() else one for one in outputs]
        memory = {one.untyped_storage()._cdata for one in saved if isinstance(one, torch.Tensor)}
        read = [one.detach() for one in outputs if one.untyped_storage()._cdata in memory]
        # Detached, or what is saved would keep the results, and they what is saved.
        ctx.saved = [one.detach() if isinstance(one, torch.Tensor) else one for one in saved]
        read += [one for one in ctx.saved if isinstance(one, torch.Tensor)]
        ctx.read = [(one, one._version) for one in read if not one.is_inference()]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for k, one in enumerate(outputs) if k not in GRADIENTS))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *given):
        arriving = given[0] if isinstance(given[0], list) else list(given)
        del given
        if ctx.saved is None:
            raise RuntimeError("the backward of a planned step runs once: run the step again")
        if torch.is_grad_enabled():
            raise RuntimeError("a planned step has no second derivatives: do without create_graph")
        if any(one._version != version for one, version in ctx.read):
            raise RuntimeError("what the backward reads was changed in place after the forward")
        saved, ctx.saved, ctx.read = ctx.saved, None, None
        gradients = []
        for k, (shape, stride, dtype, device) in GRADIENTS.items():
            one, arriving[k] = arriving[k], None
            one = torch.zeros(shape, dtype=dtype, device=device) if one is None else one
            if one.shape != shape or not same_stride(one, stride):
                one = torch.empty_strided(shape, stride, dtype=dtype, device=device).copy_(one)
            gradients.append(one)
            del one
        with planned():
            found = backward(saved, gradients)
        return None, *map(found.get, (*PARAMS, *range(len(INPUTS))))


def same_stride(value, stride):
    """Whether the elements of a tensor are as far apart as planned."""
    sizes = zip(value.shape, value.stride(), stride)
    return all(own == planned for size, own, planned in sizes if size > 1)


@contextlib.contextmanager
def planned():
    """What the step runs in: the program has the casts of autocast already."""
    if torch.get_default_dtype() != DEFAULT_DTYPE:
        raise RuntimeError(f"the step was planned with torch.set_default_dtype({DEFAULT_DTYPE})")
    with torch.autocast("cpu", enabled=False), torch.autocast(DEVICE, enabled=False):
        try:
            yield
        except BaseException:
            if DEVICE == "cuda":  # copies may be on their way into memory that is given back
                torch.cuda.synchronize()
            raise


def run(model, *inputs):
    """The results of the model: a tensor, or a tuple of its tensors. Their backward is planned."""
    tensors = dict(model.named_parameters(remove_duplicate=False))
    tensors |= dict(model.named_buffers(remove_duplicate=False))
    params = {name: tensors.get(name) for name in PARAMS}
    buffers = {name: tensors.get(name) for name in BUFFERS}
    if len(inputs) != len(INPUTS):
        raise ValueError(f"the step takes {len(INPUTS)} tensors, not {len(inputs)}: {[*INPUTS]}")
    named = dict(zip(INPUTS, inputs))
    check_model(model, tensors | {f"input {name}": one for name, one in named.items()})
    for what, given, rows in (
        ("parameter", params, PARAMS),
        ("buffer", buffers, BUFFERS),
        ("input", named, INPUTS),
    ):
        for name, row in rows.items():
            check(f"the {what} {name}", given[name], *row)
    found = Program.apply(buffers, *params.values(), *inputs)
    return results(params, buffers, inputs, found)


def check_model(model, tensors):
    """Refuse a model that is another one, or runs otherwise, than that which was planned."""
    count = len(list(model.parameters()))
    if count != COUNT:
        raise ValueError(f"the model has {count} parameters, and the one that was planned {COUNT}")
    for name, other in TIED.items():
        if tensors.get(name) is not tensors.get(other):
            raise ValueError(f"{name} and {other} must be one tensor, as when the step was planned")
    read = {*PARAMS, *BUFFERS, *(f"input {name}" for name in INPUTS)}
    memory = {name: tensors[name].untyped_storage()._cdata for name in read if name in tensors}
    for name in WRITTEN:
        for other in read:
            same = other in memory and memory[other] == memory.get(name)
            if same and TIED.get(other, other) != TIED.get(name, name):
                raise ValueError(f"the step changes {name}, which now shares memory with {other}")
    for name, module in model.named_modules():
        if module.training == (name in EVAL):
            now = "training" if module.training else "eval"
            raise ValueError(f"the module {name!r} is in {now} mode, and was not when planned")


def check(what, one, shape, stride, dtype, device, trained):
    """Refuse another tensor than what the step was planned for."""
    if not isinstance(one, torch.Tensor):
        raise ValueError(f"{what} is not there")
    if one.shape != shape or one.dtype != dtype or one.device.type != device:
        raise ValueError(
            f"{what} is {tuple(one.shape)}, {one.dtype}, on {one.device.type}; "
            f"the step was planned for {shape}, {dtype}, on {device}"
        )
    if not same_stride(one, stride):
        raise ValueError(f"{what} has strides {one.stride()}; the step was planned for {stride}")
    if one.requires_grad and not trained:
        raise ValueError(f"{what} needs a gradient, and did not when the step was planned")


def step(model, *inputs, loss=None):
    """Run a training step: gradients are added to `.grad`, buffers are updated. Returns the loss.

    `loss` takes what `run` returns and gives one number. Without it, the model's first result is
    the loss.
    """
    if not torch.is_grad_enabled():
        raise RuntimeError("a step is taken under no_grad or inference_mode: call it outside")
    found = run(model, *inputs)
    if loss is not None:
        value = loss(found)
    else:
        value = found[0] if isinstance(found, tuple) else found
    if value.numel() != 1:
        raise ValueError("the model's first result is not one number: give loss=, of the results")
    del found
    value.backward()
    return value.detach()
'''
