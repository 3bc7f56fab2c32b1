#!/usr/bin/python3
"""cri.py METHOD [JSON...]: calls of the Container Runtime Interface, as a kubelet makes them.

Each JSON is a request; all of them are made at once, and the answers are printed in their order, a line of JSON each.
Those that failed are told on stderr, and the status is 1 then. crictl is in no package of Debian. The directory that
CRI_PYTHON names has cri_pb2.py, which protoc makes of cri.proto.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import json_format

sys.path.insert(0, os.environ["CRI_PYTHON"])
import cri_pb2 as cri  # noqa: E402

METHODS = {
    "Version": (cri.VersionRequest, cri.VersionResponse),
    "Status": (cri.StatusRequest, cri.StatusResponse),
    "RunPodSandbox": (cri.RunPodSandboxRequest, cri.RunPodSandboxResponse),
    "ListPodSandbox": (cri.ListPodSandboxRequest, cri.ListPodSandboxResponse),
    "PodSandboxStatus": (cri.PodSandboxRequest, cri.PodSandboxStatusResponse),
    "StopPodSandbox": (cri.PodSandboxRequest, cri.Empty),
    "RemovePodSandbox": (cri.PodSandboxRequest, cri.Empty),
    "CreateContainer": (cri.CreateContainerRequest, cri.CreateContainerResponse),
    "StartContainer": (cri.StartContainerRequest, cri.Empty),
}


def caller(method):
    """A function that makes the call: a request as JSON to an answer, or grpc.RpcError."""
    request, response = METHODS[method]
    channel = grpc.insecure_channel("unix:///run/containerd/containerd.sock")
    call = channel.unary_unary(
        "/runtime.v1.RuntimeService/" + method, request.SerializeToString, response.FromString)
    return lambda text: call(json_format.Parse(text, request()), timeout=60)


def main(method, *requests):
    call = caller(method)

    def outcome(text):
        try:
            return call(text)
        except grpc.RpcError as error:
            return error

    with ThreadPoolExecutor(max_workers=len(requests)) as pool:
        outcomes = list(pool.map(outcome, requests))
    for answer in outcomes:
        if isinstance(answer, grpc.RpcError):
            print(f"{method}: {answer.code().name}: {answer.details()}", file=sys.stderr)
        else:
            print(json_format.MessageToJson(answer, indent=None))
    return int(any(isinstance(answer, grpc.RpcError) for answer in outcomes))


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] if sys.argv[2:] else [sys.argv[1], "{}"])))
