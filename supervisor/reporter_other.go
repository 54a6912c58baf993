//go:build !linux

package supervisor

import (
	"os"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/supervise"
)

func fromEnv() backend.Reporter {
	os.Unsetenv(supervise.Env)
	return nil
}
