from a2a_fabric import Agent

agent = Agent("hello", description="Greets people.")


@agent.capability
async def greet(name: str, times: int = 1) -> str:
    """Greet a person, as often as you like."""
    return " ".join([f"Hello, {name}!"] * times)


agent.run(port=8001)
