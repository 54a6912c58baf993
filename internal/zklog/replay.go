package zklog

import (
	"fmt"
	"path"
	"strings"
)

// Replay applies all transactions of an ensemble, from its first one on, to an empty tree. The
// error names the first one that the tree refuses. A leader writes a transaction only after it
// has checked it against its own tree, so an error means that this tree was not made by the
// transactions before: the leader lost some of them or applied them out of order. No client
// can cause that.
func Replay(txns []Txn) error {
	versions := map[string]int32{"/": 0} // of the data of each node
	for _, x := range txns {
		for _, op := range x.Ops {
			if strings.HasPrefix(op.Path, "/zookeeper/") {
				continue // a server has nodes there that no transaction made
			}
			version, ok := versions[op.Path]
			switch {
			case op.IsCreate():
				if ok {
					return fmt.Errorf("zklog: transaction %#x creates %s, which is there", x.Zxid, op.Path)
				}
				if _, ok := versions[path.Dir(op.Path)]; !ok {
					return fmt.Errorf("zklog: transaction %#x creates %s, whose parent is missing", x.Zxid, op.Path)
				}
				versions[op.Path] = 0
			case x.Type == CloseSession:
				delete(versions, op.Path)
			case !ok:
				return fmt.Errorf("zklog: transaction %#x, operation %d, needs %s, which is missing", x.Zxid, op.Type, op.Path)
			case op.IsDelete():
				delete(versions, op.Path)
			case op.Type == SetData:
				if op.Version != version+1 {
					return fmt.Errorf("zklog: transaction %#x gives %s the version %d after %d", x.Zxid, op.Path, op.Version, version)
				}
				versions[op.Path] = op.Version
			}
		}
	}
	return nil
}
