"""A deterministic simulator of faults: a whole federation in one thread, on a seeded event loop with virtual time.

The code of both sides is the product's: engine, task service, ledger, roster, meter, stores and RPC servicer of the
coordinator; link, agent, memory and disclosures of five silos. What stands around it is simulated: `loop` the event
loop and its clock, `machine` computers that are killed or lose power, `disk` their files, `database` SQLite's file,
`network` the connections, `training` the compute processes. `schedule` draws faults from a seed, `federation` runs a
schedule, `invariants` says what must hold, `planted` brings old bugs back. Run by `python -m tests.simulator.run`.

docs/decisions/0036-deterministic-simulation.md says what is covered and what is not.
"""
