#!/usr/bin/python3
"""Ansible module around module_utils/surefoot_hoststate.py, which does the work."""

DOCUMENTATION = r"""
module: surefoot_host_state
short_description: Settings of a host for the time of a campaign
description:
  - Sets kernel files, swap, services, mounts and boot parameters, and keeps on the host what was there before.
  - Puts everything back byte for byte.
options:
  state:
    description: C(set) brings the settings about, C(restored) puts back what was there before the first C(set).
    choices: [set, restored]
    default: set
    type: str
  settings:
    description: What is to be set; the kinds are described in module_utils/surefoot_hoststate.py.
    type: list
    elements: dict
    default: []
  lease_s:
    description: Seconds without a word of the controller after which the host puts everything back by itself.
    type: int
  dir:
    description: Folder on the host that keeps the previous state.
    type: path
    default: /var/lib/surefoot-lab
  root:
    description: Another root of the file system, for trials.
    type: path
    default: /
author: Surefoot
"""

EXAMPLES = r"""
- name: Keep the CPUs at their base frequency
  surefoot_host_state:
    settings:
      - {path: "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", value: performance}
- name: Put everything back
  surefoot_host_state:
    state: restored
"""

RETURN = r"""
changes:
  description: What was changed, a line each.
  type: list
  returned: always
not_possible:
  description: Settings that this host does not have or does not take, with the reason.
  type: list
  returned: when I(state=set)
reboot_due:
  description: Boot parameters that are set and not in force yet.
  type: list
  returned: when I(state=set)
"""

import os

from ansible.module_utils import surefoot_hoststate as hoststate
from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "default": "set", "choices": ["set", "restored"]},
            "settings": {"type": "list", "elements": "dict", "default": []},
            "lease_s": {"type": "int"},
            "dir": {"type": "path", "default": hoststate.DIR},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    p = module.params
    keeper = hoststate.Keeper(p["dir"], p["root"])
    try:
        if module.check_mode:  # not even the folder of the lock is made
            result = keeper.set(p["settings"], check=True) if p["state"] == "set" else keeper.restore(check=True)
        else:
            with keeper.locked():
                result = keeper.set(p["settings"], p["lease_s"]) if p["state"] == "set" else keeper.restore()
    except (hoststate.Refused, OSError, ValueError) as error:
        module.fail_json(msg="{}: {}".format(os.path.join(p["dir"], hoststate.STATE), error))
    changes = result.get("changed", result.get("restored"))
    answer = {
        "changed": bool(changes),
        "changes": changes,
        "not_possible": result.get("not_possible", []),
        "reboot_due": result.get("reboot_due", []),
        "diff": {"before": "", "after": "".join(line + "\n" for line in changes)},
    }
    if result.get("different"):
        worst = "; ".join("{}: {}".format(d["what"], d["why"]) for d in result["different"])
        module.fail_json(msg=f"not put back: {worst}. It stays recorded: mend it and run teardown again", **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
