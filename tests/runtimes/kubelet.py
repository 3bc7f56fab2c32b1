#!/usr/bin/python3
"""kubelet.py LIVES FILE: lives of pods, by calls of the Container Runtime Interface in the rhythm of a kubelet.

Ten workers run pods, each in its own sandbox with a host port: RunPodSandbox, PodSandboxStatus, a ping to the pod's
address, StopPodSandbox twice, RemovePodSandbox. Every second sandbox is stopped by two calls at once, as by a worker and by
the garbage collection. Meanwhile Status is called every second, and each pod is looked for by ListPodSandbox.
A call that was interrupted by the end of containerd is repeated until containerd answers; a pod whose sandbox is not ready
then gets another one. Any other error, a missing address and an unanswered ping are printed, and the status is 1 then.
FILE has the number of lives that have ended, while it runs. The output is figures.
"""

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from cri import caller

WORKERS = 10
GROUP = "/" + os.environ["group"]
LOGS = os.environ["work"] + "/pods"


def is_of_restart(error):
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    return error.code() in codes or "server is not initialized yet" in error.details()


def answers(address):
    return subprocess.run(["ping", "-q", "-c", "1", "-W", "3", address], stdout=subprocess.DEVNULL).returncode == 0


class Kubelet:
    def __init__(self, lives, progress):
        self.lives, self.progress = lives, progress
        self.lock = threading.Lock()
        self.ended, self.errors, self.interrupted, self.statuses = 0, [], 0, 0
        self.seconds = {}
        self.is_over = threading.Event()

    def note(self, error):
        with self.lock:
            self.errors.append(error)

    def call(self, method, request):
        """The answer, or None where containerd ended meanwhile or does not serve yet."""
        began = time.monotonic()
        try:
            answer = caller(method)(json.dumps(request))
        except grpc.RpcError as error:
            if not is_of_restart(error):
                self.note(f"{method} {request}: {error.code().name}: {error.details()}")
            with self.lock:
                self.interrupted += 1
            time.sleep(0.5)
            return None
        with self.lock:
            self.seconds.setdefault(method, []).append(time.monotonic() - began)
        return answer

    def repeat(self, method, request):
        while (answer := self.call(method, request)) is None:
            if len(self.errors) > 20:
                raise RuntimeError("too many errors")
        return answer

    def sandboxes(self, name):
        """Those of the pod that the runtime knows, as (id, is ready)."""
        items = self.repeat("ListPodSandbox", {}).items
        return [(item.id, item.state == 0) for item in items if item.metadata.name == name]

    def run(self, number):
        """A sandbox for the pod; what an interrupted call has left is stopped first, as a kubelet does."""
        name = f"pod{number}"
        for attempt in range(20):
            config = {
                "metadata": {"name": name, "uid": name, "namespace": "default", "attempt": attempt},
                "hostname": name, "logDirectory": LOGS, "linux": {"cgroupParent": GROUP},
                "portMappings": [{"hostPort": 20000 + number, "containerPort": 80}],
                "annotations": {"kubernetes.io/ingress-bandwidth": "16M"} if number % 2 else {},
            }
            answer = self.call("RunPodSandbox", {"config": config})
            if answer:
                return answer.pod_sandbox_id
            for sandbox, is_ready in self.sandboxes(name):
                if is_ready:
                    return sandbox
                self.repeat("StopPodSandbox", {"podSandboxId": sandbox})
        raise RuntimeError(f"{name} has no sandbox")

    def stop(self, sandbox, at_once):
        request = {"podSandboxId": sandbox}
        with ThreadPoolExecutor(max_workers=2 if at_once else 1) as pool:
            for _ in pool.map(lambda _: self.repeat("StopPodSandbox", request), range(2)):
                pass

    def live(self, number):
        sandbox = self.run(number)
        status = self.repeat("PodSandboxStatus", {"podSandboxId": sandbox}).status.network
        if not status.ip or len(status.additional_ips) != 1:
            self.note(f"pod{number} has the addresses {status}")
        elif not answers(status.ip):
            self.note(f"pod{number} does not answer at {status.ip}")
        time.sleep(random.Random(number).uniform(0, 1))
        self.stop(sandbox, at_once=number % 2)
        for sandbox, _ in self.sandboxes(f"pod{number}"):
            self.stop(sandbox, at_once=False)
            self.repeat("RemovePodSandbox", {"podSandboxId": sandbox})
        self.repeat("RemovePodSandbox", {"podSandboxId": sandbox})
        with self.lock:
            self.ended += 1
            with open(self.progress + ".new", "w") as file:
                print(self.ended, file=file)
            os.rename(self.progress + ".new", self.progress)

    def watch(self):
        """Status, which also has a containerd of 2.x call STATUS of the plugins."""
        while not self.is_over.wait(1):
            answer = self.call("Status", {})
            ready = {condition.type: condition.status for condition in answer.status.conditions} if answer else {}
            if answer and not ready.get("NetworkReady"):
                self.note(f"the network is not ready: {answer}")
            with self.lock:
                self.statuses += bool(answer)

    def work(self):
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        try:
            with ThreadPoolExecutor(max_workers=WORKERS) as pool:
                list(pool.map(self.live, range(self.lives)))
        finally:
            self.is_over.set()
            watcher.join()

    def report(self):
        print(f"{self.ended} lives, {self.statuses} times Status, {self.interrupted} calls interrupted")
        for method in ("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"):
            times = sorted(self.seconds[method])
            p50, p99 = (times[len(times) * percent // 100] for percent in (50, 99))
            print(f"{method}: {len(times)} calls, p50 {p50:.2f} s, p99 {p99:.2f} s")
        for error in self.errors:
            print(error, file=sys.stderr)
        return int(bool(self.errors) or self.ended != self.lives)


if __name__ == "__main__":
    kubelet = Kubelet(int(sys.argv[1]), sys.argv[2])
    kubelet.work()
    sys.exit(kubelet.report())
