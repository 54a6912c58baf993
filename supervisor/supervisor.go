// Package supervisor connects a process to its supervisor, which ends the sessions of the process when it has died.
//
// When a process is killed or crashes, the service keeps its sessions, and with them its locks, for the session timeout. The
// kernel knows of the death at once, and so does "coordctl guard", which runs as the parent of the process or beside it:
//
//	b := zookeeper.New(servers, &zookeeper.Options{Reporter: supervisor.FromEnv()})
//
// Without a supervisor nothing changes. The same holds if the supervisor dies first: then sessions end after their timeout.
//
// The locks are handed over before the messages have arrived that the dead process had written to other services. So
// a fencing token is needed there as before; see docs/production.md.
package supervisor

import "github.com/go-coord/coord/backend"

// FromEnv returns the Reporter for the Options of a backend, nil without a supervisor. It reports to the supervisor that the variable
// COORD_SUPERVISOR names: coordctl guard sets it for the command that it runs, and the manifest of a pod sets it to unix:PATH for
// coordctl guard --listen PATH.
//
// Call it once, at the beginning of main, and use the result for all backends. It removes the variable from the
// environment, and processes that are started later inherit no connection to the supervisor. A variable that does not fit the inherited descriptor
// counts as none.
//
// The Reporter never blocks. It reports at most 64 sessions that have not ended; of more, the latest. A session that was lost by its
// own clock counts until the service answers that it has ended. A supervisor that is started again at the same path gets all of
// them when the next session begins or ends; until then it knows of none. There are supervisors on Linux only.
func FromEnv() backend.Reporter { return fromEnv() }
