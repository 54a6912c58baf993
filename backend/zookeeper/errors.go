package zookeeper

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

var errTooLong = fmt.Errorf("%w: the reply is longer than %d bytes", backend.ErrTooLarge, maxFrame)

// verdict is the meaning of the code of a reply.
type verdict int8

const (
	granted   verdict = iota + 1
	refused           // definite: nothing was applied
	expired           // the session has ended; nothing was applied
	throttled         // the server is overloaded and has not run the request; send it again later
	unknown           // a commit with this answer may have been applied
)

// judge returns the verdict on the code of a reply and, unless it is granted, the error to
// report. Only a code that servers return before they apply anything is a refusal.
func judge(code int32) (verdict, error) {
	switch code {
	case codeOK:
		return granted, nil
	case codeNoNode:
		return refused, backend.ErrNotFound
	case codeNodeExists:
		return refused, backend.ErrExists
	case codeBadVersion:
		return refused, backend.ErrBadVersion
	case codeNotEmpty:
		return refused, backend.ErrNotEmpty
	case codeNoChildren:
		return refused, backend.ErrNoChildren
	case codeNoAuth, codeAuthFailed:
		return refused, backend.ErrDenied
	case codeInvalidACL:
		return refused, contact.Invalid("the server rejects the ACL")
	case codeBadArguments:
		return refused, contact.Invalid("the server rejects the arguments")
	case codeUnimplemented, codeLocalSession:
		return refused, fmt.Errorf("%w: %s", backend.ErrUnsupported, serverCode(code))
	case codeNotReadOnly, codeNeedsSASL, codeQuotaExceeded:
		return refused, fmt.Errorf("%w: %s", backend.ErrDenied, serverCode(code))
	case codeSessionExpired, codeUnknownSession:
		return expired, nil
	case codeThrottled:
		return throttled, nil
	}
	return unknown, errors.New(serverCode(code))
}

// withNode adds the node and its missing permission to a refusal.
func withNode(code int32, refusal error, op, path string) error {
	if code != codeNoAuth {
		return refusal
	}
	switch op {
	case "get", "children", "check":
		return &backend.DeniedError{Path: path, Perm: "read"}
	case "set":
		return &backend.DeniedError{Path: path, Perm: "write"}
	case "create", "delete":
		parent := path[:max(1, strings.LastIndexByte(path, '/'))]
		return &backend.DeniedError{Path: parent, Perm: op}
	case "absent":
		// The answer does not say whether the creation or the deletion was refused.
		parent := path[:max(1, strings.LastIndexByte(path, '/'))]
		return &backend.DeniedError{Path: parent, Perm: "create"}
	}
	return refusal
}

// serverCode describes a code for which there is no error.
func serverCode(code int32) string {
	switch code {
	case codeNotReadOnly:
		return "the server is read-only"
	case codeNeedsSASL:
		return "the server requires SASL authentication"
	case codeQuotaExceeded:
		return "a quota is exceeded"
	}
	return fmt.Sprintf("the server returned error %d", code)
}

// reason strips an *Error, which names another operation, from the error.
func reason(err error) error {
	var e *backend.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// debugLog is the logger of the zk client, which is given no secrets.
type debugLog struct{ log *outbox.Logger }

func (l debugLog) Printf(format string, args ...any) {
	if !l.log.Silent() {
		l.log.Debug("coord: zk: " + fmt.Sprintf(format, args...))
	}
}
