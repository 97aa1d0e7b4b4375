"""The messages of `agent.proto`, made from its compiled form.

Code that the compiler writes insists on one version of protobuf; this works with all,
and a pool of its own keeps it apart from the modules of programs that compile the file themselves.
`scripts/generate` writes `agent.binpb`, and the types in `messages.pyi`.
"""

from __future__ import annotations

from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _messages() -> dict[str, type]:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(files(__package__).joinpath("agent.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for each in compiled.file:
        pool.AddSerializedFile(each.SerializeToString())
    found = pool.FindFileByName(compiled.file[0].name).message_types_by_name
    return {name: message_factory.GetMessageClass(message) for name, message in found.items()}


globals().update(_messages())
