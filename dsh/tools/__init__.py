"""Tools: what one is, how its schema is checked, which ones an agent sees, the stages of a call, how calls
are shown.

The concrete tools are capabilities. This package knows neither the session nor the agent loop: it speaks to
both through the small protocols of `definition`.
"""
