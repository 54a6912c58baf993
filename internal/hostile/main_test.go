// Package hostile_test runs every recipe where the service is not coord's own: among
// foreign nodes, names and data, in directories that are deleted or lose their
// permissions in use, between clients with other credentials, and at the end of the
// sequence numbers. It also checks that no log, error or event shows a secret.
package hostile_test

import (
	"testing"

	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }
