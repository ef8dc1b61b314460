"""The store in DynamoDB."""

from caslock.stores.dynamodb.store import AsyncDynamoDBStore, DynamoDBStore

__all__ = ["AsyncDynamoDBStore", "DynamoDBStore"]
