"""A run as Kubernetes objects, made of the official client's models, which refuse wrong types and unknown fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes import client as k8s

from configs import serialization
from launch.cluster_run import (
    CONFIG_DIRECTORY,
    COORDINATOR_PORT,
    PORT,
    RUN_DIRECTORY,
    SHARES,
    Run,
    command_of,
    dns_name,
    environment_of,
    pods_of,
)
from launch.sizing import MIB, SHARED_MEMORY, Needs, needs_of

USER = 1000  # of the image
DIGEST = "antiphon/config-digest"
JOBS = ("learner", "actor", "accelerated_actor", "monitor")  # roles of pods with an index that may end
GPU = "nvidia.com/gpu"  # as NVIDIA's device plugin counts them
UNUSABLE = 2  # the exit code of a command line or an experiment that can't work: another try won't help


def make_manifests(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The objects as plain data, by file name (one file a kind)."""
    counts = pods_of(run)
    kinds: dict[str, Sequence[Any]] = {
        "configmap.yaml": [_config_map(run)],
        "services.yaml": [_headless(run, "replay", PORT), _headless(run, "learner", COORDINATOR_PORT)],
        "statefulset.yaml": [_shards(run)],
        "jobs.yaml": [_job(run, role, counts[role]) for role in JOBS if counts[role]],
        "deployment.yaml": [_evaluator(run)] if run.experiment.topology.evaluators else [],
        "persistentvolumeclaims.yaml": [_claim(run, "learner"), _claim(run, "monitor")],
        "networkpolicies.yaml": [
            _policy(run, "replay", PORT, None),
            _policy(run, "learner", COORDINATOR_PORT, "learner"),
        ],
        "poddisruptionbudget.yaml": [_budget(run)],
    }
    sanitize = k8s.ApiClient().sanitize_for_serialization
    return {file: [sanitize(each) for each in objects] for file, objects in kinds.items() if objects}


def labels_of(run: Run, role: str = "") -> dict[str, str]:
    """Kubernetes' recommended labels; a role's pods are found by them."""
    component = {"app.kubernetes.io/component": role} if role else {}
    return {"app.kubernetes.io/name": "antiphon", "app.kubernetes.io/instance": run.name, **component}


def _meta(run: Run, name: str, role: str = "") -> k8s.V1ObjectMeta:
    return k8s.V1ObjectMeta(
        name=f"{run.name}-{dns_name(name)}",
        labels={**labels_of(run, role), "app.kubernetes.io/managed-by": "launch.kubernetes"},
        annotations={DIGEST: run.digest},
    )


def _config_map(run: Run) -> k8s.V1ConfigMap:
    return k8s.V1ConfigMap(
        api_version="v1",
        kind="ConfigMap",
        metadata=_meta(run, "config"),
        immutable=True,  # pods that start later must not get another experiment
        data={"config.json": serialization.to_json(run.experiment)},
    )


def _headless(run: Run, role: str, port: int) -> k8s.V1Service:
    return k8s.V1Service(
        api_version="v1",
        kind="Service",
        metadata=_meta(run, role, role),
        spec=k8s.V1ServiceSpec(
            cluster_ip="None",
            publish_not_ready_addresses=True,  # else a shard that restores loses its name
            selector=labels_of(run, role),
            ports=[k8s.V1ServicePort(name="grpc", port=port, target_port=port)],
        ),
    )


def _shards(run: Run) -> k8s.V1StatefulSet:
    needs = needs_of("replay", run.experiment, run.size)
    return k8s.V1StatefulSet(
        api_version="apps/v1",
        kind="StatefulSet",
        metadata=_meta(run, "replay", "replay"),
        spec=k8s.V1StatefulSetSpec(
            replicas=run.experiment.topology.shards,
            service_name=f"{run.name}-replay",
            pod_management_policy="Parallel",
            selector=k8s.V1LabelSelector(match_labels=labels_of(run, "replay")),
            template=_pod(run, "replay", needs, restart="Always"),
            volume_claim_templates=[
                k8s.V1PersistentVolumeClaim(
                    api_version="v1",
                    kind="PersistentVolumeClaim",
                    metadata=k8s.V1ObjectMeta(name="run", labels=labels_of(run, "replay")),
                    spec=_claim_spec(run, needs.disk, "ReadWriteOnce"),
                )
            ]
            if needs.disk
            else None,
        ),
    )


def _job(run: Run, role: str, count: int) -> k8s.V1Job:
    """Pods with an index each, which a pod that takes another's place keeps."""
    supervision = run.experiment.supervision
    return k8s.V1Job(
        api_version="batch/v1",
        kind="Job",
        metadata=_meta(run, role, role),
        spec=k8s.V1JobSpec(
            completion_mode="Indexed",
            completions=count,  # equal to parallelism: then both may change together while it runs
            parallelism=count,
            backoff_limit_per_index=0 if role in supervision.final else supervision.restarts,
            pod_failure_policy=k8s.V1PodFailurePolicy(
                rules=[
                    k8s.V1PodFailurePolicyRule(
                        action="Ignore",  # a node that is drained or lost is no failure of the role
                        on_pod_conditions=[
                            k8s.V1PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")
                        ],
                    ),
                    k8s.V1PodFailurePolicyRule(
                        action="FailJob",
                        on_exit_codes=k8s.V1PodFailurePolicyOnExitCodesRequirement(
                            container_name=dns_name(role), operator="In", values=[UNUSABLE]
                        ),
                    ),
                ]
            ),
            template=_pod(run, role, needs_of(role, run.experiment, run.size), restart="Never"),
        ),
    )


def _evaluator(run: Run) -> k8s.V1Deployment:
    return k8s.V1Deployment(
        api_version="apps/v1",
        kind="Deployment",
        metadata=_meta(run, "evaluator", "evaluator"),
        spec=k8s.V1DeploymentSpec(
            replicas=1,
            strategy=k8s.V1DeploymentStrategy(type="Recreate"),
            selector=k8s.V1LabelSelector(match_labels=labels_of(run, "evaluator")),
            template=_pod(run, "evaluator", needs_of("evaluator", run.experiment, run.size), restart="Always"),
        ),
    )


def _claim(run: Run, role: str) -> k8s.V1PersistentVolumeClaim:
    # Pods on two nodes can't share a ReadWriteOnce volume, and those of one Job have the same volumes.
    mode = "ReadWriteMany" if role == "learner" and run.experiment.learner.processes > 1 else "ReadWriteOnce"
    return k8s.V1PersistentVolumeClaim(
        api_version="v1",
        kind="PersistentVolumeClaim",
        metadata=_meta(run, role, role),
        spec=_claim_spec(run, needs_of(role, run.experiment, run.size).disk, mode),
    )


def _claim_spec(run: Run, disk: int, mode: str) -> k8s.V1PersistentVolumeClaimSpec:
    return k8s.V1PersistentVolumeClaimSpec(
        access_modes=[mode],
        storage_class_name=run.storage_class or None,
        resources=k8s.V1VolumeResourceRequirements(requests={"storage": mebibytes(disk)}),
    )


def _policy(run: Run, role: str, port: int, source: str | None) -> k8s.V1NetworkPolicy:
    """Only pods of this run (of one role where `source` names it) reach a role: Reverb knows no password."""
    return k8s.V1NetworkPolicy(
        api_version="networking.k8s.io/v1",
        kind="NetworkPolicy",
        metadata=_meta(run, role, role),
        spec=k8s.V1NetworkPolicySpec(
            pod_selector=k8s.V1LabelSelector(match_labels=labels_of(run, role)),
            policy_types=["Ingress"],
            ingress=[
                k8s.V1NetworkPolicyIngressRule(
                    _from=[
                        k8s.V1NetworkPolicyPeer(
                            pod_selector=k8s.V1LabelSelector(match_labels=labels_of(run, source or ""))
                        )
                    ],
                    # Learners also open ports of their own to each other (gloo, NCCL).
                    ports=None if source else [k8s.V1NetworkPolicyPort(port=port, protocol="TCP")],
                )
            ],
        ),
    )


def _budget(run: Run) -> k8s.V1PodDisruptionBudget:
    return k8s.V1PodDisruptionBudget(
        api_version="policy/v1",
        kind="PodDisruptionBudget",
        metadata=_meta(run, "replay", "replay"),
        spec=k8s.V1PodDisruptionBudgetSpec(
            max_unavailable=1, selector=k8s.V1LabelSelector(match_labels=labels_of(run, "replay"))
        ),
    )


def _pod(run: Run, role: str, needs: Needs, restart: str) -> k8s.V1PodTemplateSpec:
    """A pod of one container. Its volumes: the run's folder, the experiment, /tmp, and /dev/shm where it is used."""
    return k8s.V1PodTemplateSpec(
        metadata=k8s.V1ObjectMeta(labels=labels_of(run, role), annotations={DIGEST: run.digest}),
        spec=k8s.V1PodSpec(
            restart_policy=restart,
            subdomain=f"{run.name}-learner" if role == "learner" else None,  # names each pod of its Job in the DNS
            termination_grace_period_seconds=needs.stop_seconds,
            automount_service_account_token=False,
            enable_service_links=False,
            security_context=k8s.V1PodSecurityContext(
                run_as_non_root=True,
                run_as_user=USER,
                run_as_group=USER,
                fs_group=USER,
                fs_group_change_policy="OnRootMismatch",
                seccomp_profile=k8s.V1SeccompProfile(type="RuntimeDefault"),
            ),
            containers=[_container(run, role, needs)],
            volumes=_volumes(run, role, needs),
        ),
    )


def _container(run: Run, role: str, needs: Needs) -> k8s.V1Container:
    memory = mebibytes(needs.memory)
    gpus = {GPU: str(needs.gpus)} if needs.gpus else {}
    mounts = {"run": RUN_DIRECTORY, "config": CONFIG_DIRECTORY, "tmp": "/tmp"}
    if role in SHARES:
        mounts["shm"] = "/dev/shm"
    return k8s.V1Container(
        name=dns_name(role),
        image=run.image,
        command=None,  # the image's entry point is an init
        args=command_of(role),
        env=[k8s.V1EnvVar(name=name, value=value) for name, value in environment_of(run, role, needs).items()],
        ports=[k8s.V1ContainerPort(name="grpc", container_port=PORT)] if role == "replay" else None,
        resources=k8s.V1ResourceRequirements(
            requests={"cpu": f"{needs.cpu * 1000:.0f}m", "memory": memory, **gpus}, limits={"memory": memory, **gpus}
        ),
        # A server that writes a checkpoint is slow to answer: two minutes are no sign of death.
        startup_probe=_probe("started", 5, -(-needs.start_seconds // 5)),
        liveness_probe=_probe("live", 20, 6),
        readiness_probe=_probe("ready", 10, 3) if role == "replay" else None,
        security_context=k8s.V1SecurityContext(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=k8s.V1Capabilities(drop=["ALL"]),
        ),
        volume_mounts=[
            k8s.V1VolumeMount(name=name, mount_path=path, read_only=True if name == "config" else None)
            for name, path in mounts.items()
        ],
        termination_message_policy="FallbackToLogsOnError",
    )


def _probe(what: str, period: int, failures: int) -> k8s.V1Probe:
    return k8s.V1Probe(
        _exec=k8s.V1ExecAction(command=["python", "-m", "launch.probe", what, f"--run_directory={RUN_DIRECTORY}"]),
        period_seconds=period,
        timeout_seconds=10,
        failure_threshold=failures,
    )


def _volumes(run: Run, role: str, needs: Needs) -> list[k8s.V1Volume]:
    volumes = [
        k8s.V1Volume(name="config", config_map=k8s.V1ConfigMapVolumeSource(name=f"{run.name}-config")),
        k8s.V1Volume(name="tmp", empty_dir=k8s.V1EmptyDirVolumeSource()),
    ]
    if role in SHARES:
        shared = k8s.V1EmptyDirVolumeSource(medium="Memory", size_limit=mebibytes(SHARED_MEMORY))
        volumes.append(k8s.V1Volume(name="shm", empty_dir=shared))
    if not needs.disk:
        volumes.append(k8s.V1Volume(name="run", empty_dir=k8s.V1EmptyDirVolumeSource()))
    elif role != "replay":  # a shard's comes from its StatefulSet
        source = k8s.V1PersistentVolumeClaimVolumeSource(claim_name=f"{run.name}-{role}")
        volumes.append(k8s.V1Volume(name="run", persistent_volume_claim=source))
    return volumes


def mebibytes(count: int) -> str:
    """Bytes as Kubernetes writes them, rounded up."""
    return f"{-(-count // MIB)}Mi"


def kustomization(files: Sequence[str], namespace: str) -> Mapping[str, Any]:
    """What makes the folder a base of Kustomize, and `kubectl apply -k` possible."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": namespace} if namespace else {}),
        "resources": list(files),
    }
