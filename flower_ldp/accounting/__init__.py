"""What releases have cost: exact amounts and the durable ledger of the data owner's."""
