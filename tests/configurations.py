"""What users have in their ansible.cfg, by kind."""

CONFIGURATIONS = {
    "gathering and callbacks": """
[defaults]
gathering = explicit
gather_subset = !all
stdout_callback = minimal
callback_result_format = json
display_ok_hosts = no
""",
    "free": """
[defaults]
strategy = free
forks = 1
any_errors_fatal = True
inject_facts_as_vars = False
""",
    "a strategy that is not installed": """
[defaults]
strategy = mitogen_linear
no_log = True
""",
    "become": """
[privilege_escalation]
become = True
become_user = nobody
become_ask_pass = True
[defaults]
ask_pass = True
""",
    "elsewhere": """
[defaults]
roles_path = /nowhere/roles
library = /nowhere/library
interpreter_python = /usr/bin/env python3
jinja2_native = True
hash_behaviour = merge
[inventory]
enable_plugins = yaml
[diff]
always = True
[tags]
run = mine
skip = all
""",
    "other ways to a host": """
[defaults]
host_key_checking = False
enable_task_debugger = True
[ssh_connection]
pipelining = False
transfer_method = piped
""",
}
