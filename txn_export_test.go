package coord

// DecisionName is what the decision of the transaction with this zxid is called.
func DecisionName(zxid int64) string { return base((&dtx{zxid: zxid}).decision()) }
