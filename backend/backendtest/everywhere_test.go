package backendtest

import (
	"strings"

	"github.com/go-coord/coord/backend"
)

// everywhere returns a script without randomness: commits with every refusal at every place
// among valid operations, with every two refusals in either order, and every sequence of up
// to mostOps operations on one node as one commit, on a node that exists and on one that is
// missing.
func everywhere(mostOps int) []step {
	at := func(path string) nodeRef { return nodeRef{path: path} }
	commit := func(ops ...scriptOp) step { return step{what: commitStep, ops: ops} }
	create := func(path string, mode backend.CreateMode) scriptOp {
		return scriptOp{kind: backend.OpCreate, node: at(path), data: "v", mode: mode}
	}
	on := func(kind backend.OpKind, path string, version int32) scriptOp {
		return scriptOp{kind: kind, node: at(path), data: "w", version: version}
	}
	const set, del, check = backend.OpSetData, backend.OpDelete, backend.OpCheck
	const anyVersion = backend.AnyVersion

	// a has a child, b was changed once, c is ephemeral.
	script := []step{
		commit(create("a", backend.Persistent)), commit(create("a/x", backend.Persistent)),
		commit(create("b", backend.Persistent)), commit(on(set, "b", 0)), commit(create("c", backend.Ephemeral)),
	}

	refusals := []scriptOp{
		create("a", backend.Persistent), create("missing/x", backend.Ephemeral), create("c/x", backend.Persistent),
		create("c/s-", backend.EphemeralSequential), create("missing/s-", backend.PersistentSequential),
		create("b//bad", backend.Persistent), create("", backend.Persistent), create("box", backend.Container),
		on(set, "missing", anyVersion), on(set, "b", 7), on(set, "b//bad", anyVersion), on(set, "b", -2),
		on(del, "missing", anyVersion), on(del, "b", 7), on(del, "a", anyVersion), on(del, "", anyVersion),
		on(check, "missing", anyVersion), on(check, "b", 7), on(check, "b", -2),
		{kind: set, node: at("b"), data: strings.Repeat("D", backend.MaxRequest), version: anyVersion},
	}
	fine := []scriptOp{
		create("a/new", backend.Persistent), on(set, "b", anyVersion), on(check, "a/x", 0),
		create("a/s-", backend.PersistentSequential), on(del, "a/x", 0),
	}
	for n := 1; n <= 4; n++ {
		for place := range n {
			for _, r := range refusals {
				if n == 1 && r.mode == backend.Container {
					continue // alone it is not refused
				}
				ops := append([]scriptOp(nil), fine[:n]...)
				ops[place] = r
				script = append(script, commit(ops...))
			}
		}
	}
	for _, r := range refusals {
		for _, q := range refusals {
			script = append(script, commit(r, fine[1], q))
		}
	}

	// Each operation of a commit sees the effects of those before it.
	seen := []scriptOp{
		create("n", backend.Persistent), create("n", backend.Ephemeral), create("n/x", backend.Persistent), on(set, "n", 0),
		on(set, "n", anyVersion), on(del, "n", 0), on(del, "n", anyVersion), on(check, "n", 0), on(check, "n", 1),
	}
	var sequences func(ops []scriptOp)
	sequences = func(ops []scriptOp) {
		if len(ops) > 0 {
			for _, there := range []bool{false, true} {
				if there {
					script = append(script, commit(create("n", backend.Persistent)))
				}
				script = append(script, commit(ops...), step{what: getStep, node: at("n")},
					commit(on(del, "n/x", anyVersion)), commit(on(del, "n", anyVersion)))
			}
		}
		if len(ops) == mostOps {
			return
		}
		for _, op := range seen {
			sequences(append(ops[:len(ops):len(ops)], op))
		}
	}
	sequences(nil)
	return script
}
