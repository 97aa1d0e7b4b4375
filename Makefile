# Thin over scripts/, which work without make too.
.PHONY: help install demo test check fmt docs bench peers conformance tck matrix soak clean unit coverage house release

help:            ## show the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install:         ## make .venv with the package and its test tools
	@scripts/install

demo:            ## install, then run the gateway with its demo agents
	@scripts/demo

test:            ## install, then run every check and every test
	@scripts/test

unit:            ## the tests without servers, in under a minute
	@scripts/unit

coverage:        ## run the tests that share the node's process, and print how much of each module they run
	@scripts/coverage

check:           ## lint, types and the links of the documentation
	@scripts/check

fmt:             ## format the code
	@scripts/fmt

docs:            ## build the documentation into site/ and check its links
	@scripts/docs

bench:           ## measure, and print the tables
	@scripts/bench

peers:           ## measure other MCP proxies beside ours, as they come and tuned
	@scripts/bench peers

conformance:     ## run the official MCP conformance suite, the A2A TCK and real MCP clients against a node
	@scripts/conformance

tck:             ## run the A2A TCK alone: an SDK agent directly, behind a node, and the default door
	@scripts/conformance tck

soak:            ## run the long tests: killed nodes, stopped databases
	@scripts/soak

matrix:          ## every door with every runtime in every aspect; writes docs/matrix.md
	@scripts/matrix

house:           ## figures of the source tree, with four calls traced
	@.venv/bin/python scripts/house

release:         ## build and try the wheel; uploads nothing
	@scripts/release

clean:           ## remove everything that was built
	@scripts/clean
