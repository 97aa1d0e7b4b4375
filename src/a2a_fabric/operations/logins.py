"""Operations on the caller's own logins at agents that want OAuth: start, finish, list, remove."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from a2a_fabric.core.agent import Manifest
from a2a_fabric.core.call import Emit, Principal
from a2a_fabric.core.errors import Forbidden
from a2a_fabric.core.logins import login_owner
from a2a_fabric.core.policy import find_refusal
from a2a_fabric.core.result import Result, format_timestamp
from a2a_fabric.gateway import Gateway
from a2a_fabric.logins.logins import LoginPending, Logins
from a2a_fabric.operations.operation import Operation, OperationRequest, TracedArguments

_Parameter = Annotated[str, Meta(max_length=4096)]
_AgentId = Annotated[str, Meta(max_length=256, description="Which agent.")]


class StartLoginArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: _AgentId
    redirect_uri: Annotated[
        str | None, Meta(description="A loopback address to which the browser returns. Unset: log in by a device code.")
    ] = None


class FinishLoginArguments(TracedArguments, frozen=True, kw_only=True):
    state: Annotated[_Parameter, Meta(description="As the login was started with.")]
    code: Annotated[_Parameter | None, Meta(description="What the browser brought; none for a device code.")] = None
    iss: Annotated[_Parameter | None, Meta(description="The issuer that the browser brought, if any.")] = None
    error: Annotated[_Parameter | None, Meta(description="The error that the browser brought instead.")] = None


class ListLoginsArguments(TracedArguments, frozen=True, kw_only=True):
    """There are none but the trace."""


class RemoveLoginArguments(TracedArguments, frozen=True, kw_only=True):
    agent_id: _AgentId


class LoginOperations:
    def __init__(self, gateway: Gateway, logins: Logins) -> None:
        self._gateway = gateway
        self._logins = logins

    def all(self) -> list[Operation[Any]]:
        return [
            Operation(
                "fabric.login.start",
                "Start a login of yours at an agent that wants one, and get the page to open.",
                StartLoginArguments,
                self.start,
                scopes=("agent", "capability"),
                read_only=False,
            ),
            Operation(
                "fabric.login.finish",
                "Finish a login that you started, with what the browser brought.",
                FinishLoginArguments,
                self.finish,
                scopes=("agent", "capability"),
                read_only=False,
            ),
            Operation("fabric.login.list", "List your logins at agents.", ListLoginsArguments, self.list, scopes=()),
            Operation(
                "fabric.login.remove",
                "Remove your login at an agent, and tell its server.",
                RemoveLoginArguments,
                self.remove,
                scopes=(),
                read_only=False,
            ),
        ]

    async def start(self, arguments: StartLoginArguments, request: OperationRequest, emit: Emit) -> Result:
        owner, agent_id = (
            login_owner(request.principal),
            self._find_agent(request.principal, arguments.agent_id).agent_id,
        )
        if arguments.redirect_uri is None:
            started = await self._logins.start_device(owner, agent_id)
        else:
            started = await self._logins.start(owner, agent_id, arguments.redirect_uri)
        fields = {
            "agent_id": agent_id,
            "issuer": started.issuer,
            "state": started.state,
            "url": started.url,
            "user_code": started.user_code,
            "interval": started.interval,
            "expires_in": started.expires_in,
        }
        return Result(data={name: value for name, value in fields.items() if value is not None})

    async def finish(self, arguments: FinishLoginArguments, request: OperationRequest, emit: Emit) -> Result:
        owner = login_owner(request.principal)
        try:
            record = await self._logins.finish(owner, arguments.state, arguments.code, arguments.iss, arguments.error)
        except LoginPending as pending:
            return Result(data={"status": "pending", "interval": pending.interval})
        login = {"agent_id": record.agent_id, "issuer": record.issuer, "scopes": list(record.scopes)}
        return Result(data={"status": "complete", **login})

    async def list(self, arguments: ListLoginsArguments, request: OperationRequest, emit: Emit) -> Result:
        rows = [
            {
                "agent_id": record.agent_id,
                "issuer": record.issuer,
                "scopes": list(record.scopes),
                "signed_in_at": format_timestamp(record.created_at),
                "renewed_at": format_timestamp(record.updated_at),
                "expires_at": None if expires_at is None else format_timestamp(expires_at),
            }
            for record, expires_at in await self._logins.list(login_owner(request.principal))
        ]
        return Result(data={"logins": rows, "count": len(rows)})

    async def remove(self, arguments: RemoveLoginArguments, request: OperationRequest, emit: Emit) -> Result:
        removed, revoked = await self._logins.remove(login_owner(request.principal), arguments.agent_id)
        return Result(data={"agent_id": arguments.agent_id, "removed": removed, "revoked": revoked})

    def _find_agent(self, principal: Principal, agent_id: str) -> Manifest:
        """An agent without any login offers nothing yet, and is therefore not in every caller's catalog."""
        registry = self._gateway.registry
        manifest = registry.catalog.get(agent_id)
        if manifest is None or manifest.is_tool:
            return registry.find_agent_for(principal, agent_id)
        if (refusal := find_refusal(principal, manifest, "login")) is not None:
            raise Forbidden(refusal, agent_id=agent_id)
        return manifest
