"""Agents by name. An agent from outside is named by its import path instead, e.g. "my_package.my_module:make_agent"."""

MAKERS = {
    "apex_dqn": "agents.apex_dqn.agent:make_agent",
    "impala": "agents.impala.agent:make_agent",
}
