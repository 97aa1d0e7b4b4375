"""JSON Schemas that strangers bring: how much work they can cause, and validators that never cause more than that.

`graph` lists the subschemas of a schema and resolves its references. `limits` judges a
schema before anything compiles it. `patterns` does the same for a regular expression.
`validators` compiles what was judged and decides, call by call, where arguments are checked.
"""
