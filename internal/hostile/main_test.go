// Package hostile_test runs the recipes where the service is not coord's own. It shows that a
// recipe ignores, survives, or refuses with a typed error:
//
//   - foreign nodes, names, data, records, items and lists, also too long ones;
//   - directories that are deleted in use;
//   - permissions that are missing, or revoked at any step: no endless retry, and no ephemeral
//     node left;
//   - the end of the sequence numbers, on a real server whose log was changed for it.
//
// It also searches the logs, events, errors and printed options of all recipes under faults for
// secrets: passwords and data of users.
//
// Malformed replies of a server are not tested here but in backend/zookeeper. A client with
// permission to create or delete nodes can join or end what is there; SECURITY.md says what is
// not protected.
//
//	go test ./internal/hostile     # there is no long form
package hostile_test

import (
	"testing"

	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }
