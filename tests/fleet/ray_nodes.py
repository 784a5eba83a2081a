"""A Ray cluster on the loopback: ``python ray_nodes.py ADDRESS_FILE``.

``start NAME`` and ``kill NAME`` on standard input start and remove a node; the file ``ADDRESS_FILE.NAME``
says that it is there. The end of the input ends the cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ray.cluster_utils import Cluster


def main(address: Path) -> None:
    cluster, nodes = Cluster(), {}
    for line in sys.stdin:
        verb, name = line.split()
        mark = address.with_name(f"{address.name}.{name}")
        if verb == "kill":
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
            mark.unlink()
            continue
        nodes[name] = cluster.add_node(
            node_name=name,
            node_ip_address="127.0.0.1",
            include_dashboard=False,
            include_log_monitor=False,
            num_cpus=1,
            object_store_memory=80_000_000,
            env_vars={"SITE_MACHINE": name},
        )
        address.write_text(cluster.address)
        mark.touch()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
